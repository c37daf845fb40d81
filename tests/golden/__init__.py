"""Stored shapes of every storage version, which must stay readable for ever (§7)."""
