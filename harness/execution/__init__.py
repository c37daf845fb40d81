"""Mechanics of one provider request and one tool call; nothing here knows durable state (§5.7)."""
