"""Atomic transactions and bounded queries over entries, values, lists and the usage ledger."""
