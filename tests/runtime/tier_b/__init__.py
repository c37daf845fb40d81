"""Tier B: what is written, in which order, and what happens between the writes (§9.3)."""
