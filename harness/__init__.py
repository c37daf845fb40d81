"""Durable agent sessions: the runtime and its embedded storage backends."""
