"""What is known about a session without opening it; backends store it, so it lives beside them (§2.8)."""

from harness.storage.metadata import STORAGE_VERSION, SessionMetadata

__all__ = ["STORAGE_VERSION", "SessionMetadata"]
