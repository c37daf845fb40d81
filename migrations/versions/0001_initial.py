"""The first schema: tables, functions, row security, and the job queue's own tables."""

from __future__ import annotations

from migrations.sql import run_queue_schema, run_script

revision = "0001"
down_revision = None
step = "before"

# In this order: functions name tables, and the queue brings its own objects (in schema public,
# where it finds them whatever the connection's search path is).
_SCRIPTS = (
    "tables.sql",
    "compression.sql",
    "functions/open_branch.sql",
    "functions/commit_batch.sql",
    "functions/read_values.sql",
    "functions/read_entries.sql",
    "functions/scan_branch.sql",
    "functions/claim.sql",
    "functions/hosts.sql",
    "functions/dispatch.sql",
    "functions/hosting.sql",
    "functions/sessions.sql",
    "functions/api_keys.sql",
    "row_security.sql",
)


def upgrade() -> None:
    """Make everything."""
    for script in _SCRIPTS:
        run_script(f"0001/{script}")
    run_queue_schema()
