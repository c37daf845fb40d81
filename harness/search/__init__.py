"""Full-text search over sessions: a projection of its own, filled from repositories, without authority (§2.8)."""
