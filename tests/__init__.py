"""Tests and benchmarks of Laneway."""
