"""The schema's name, and which of its tables are partitioned: for those who need no more of it."""

from __future__ import annotations

SCHEMA = "laneway"

# Tables that are partitioned by the time in an id, and the column that holds it.
PARTITIONED = {
    "entries": "id",
    "usage_ledger": "id",
    "branch_entries": "entry_id",
    "search_entries": "entry_id",
}
