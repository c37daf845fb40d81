"""What operators ask and order: the fleet's work over all tenants, hosts told to leave, retention of receipts."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0004"
down_revision = "0003"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0004/operator.sql")
