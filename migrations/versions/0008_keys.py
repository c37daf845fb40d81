"""What was made for a request is noted under its idempotency key by the commit that makes it."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0008"
down_revision = "0007"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0008/keys.sql")
    run_script("0008/commit_batch.sql")
