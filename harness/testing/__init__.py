"""Shipped test tools: what proves a backend, and what drives a harness deterministically."""
