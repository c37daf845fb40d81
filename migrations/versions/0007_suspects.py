"""Suspects: operations that hosts died under are driven one at a time, so that no innocent one is ended for another's deed."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0007"
down_revision = "0006"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0007/suspects.sql")
