"""Functions that restore and empty whole sessions."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0003"
down_revision = "0002"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0003/copies.sql")
