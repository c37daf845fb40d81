"""The search index beside the sessions."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0002"
down_revision = "0001"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0002/search.sql")
