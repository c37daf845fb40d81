"""Every legal transition of an operation stands here; nothing else builds operation states (§3)."""
