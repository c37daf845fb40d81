"""Tests of the harness runtime on virtual time."""
