"""Who drives what: passes admitted one by one within their tenant's limit, and ends of what nobody can open."""

from __future__ import annotations

from migrations.sql import run_script

revision = "0005"
down_revision = "0004"
step = "before"


def upgrade() -> None:
    """Make everything."""
    run_script("0005/passes.sql")
    run_script("0005/dispatch.sql")
    run_script("0005/unopened.sql")
