"""A receipt is one function's answer: whoever waits for an outcome looks at it again and again."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0010"
down_revision = "0009"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0010/receipts.sql")
