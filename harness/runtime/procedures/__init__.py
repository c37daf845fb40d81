"""Straight-line coroutines around commits: one module per part of the operation graph (§4.1)."""
