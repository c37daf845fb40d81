"""Tier A: each state is made durable, reopened and driven (§9.3)."""
