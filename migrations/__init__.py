"""Alembic migrations of the laneway schema."""
