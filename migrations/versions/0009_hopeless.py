"""What kills every host that opens its session is counted, and found without being opened."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0009"
down_revision = "0008"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0009/hopeless.sql")
