"""The trace of an accepted operation, kept for whichever host drives it."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0006"
down_revision = "0005"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0006/traces.sql")
    run_script("0006/commit_batch.sql")
