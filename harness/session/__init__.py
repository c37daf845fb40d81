"""Typed views over one session's storage: tree, lanes, values, context projection."""
