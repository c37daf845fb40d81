"""The runtime against the specification: states (tier A), writes (tier B), races (tier C)."""
