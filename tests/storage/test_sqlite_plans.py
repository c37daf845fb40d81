"""Query plans and transaction discipline of the SQLite backend (§1.7, §9.3)."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.address import list_of, value
from harness.storage.branch_index import CHAIN_SQL, SCAN_SQL
from harness.storage.protocol import BranchScan
from harness.storage.queries import load_queries
from harness.storage.sqlite_file import SQL
from harness.storage.writes import append_list, insert_entry, insert_usage, set_value
from harness.testing.conformance.samples import Samples
from tests.storage.support import new_sqlite

BRANCHES = load_queries("harness.storage.sqlite_sql", "branches.sql")
POINT_QUERIES = (
    "usage_exists", "entry_exists", "get_entry", "get_value", "scan_values", "scan_values_from",
    "read_list_asc", "read_list_desc", "scan_entries_asc", "scan_entries_desc", "scan_usage_asc",
    "scan_usage_desc", "set_value", "delete_value", "append_list", "delete_list",
)  # fmt: skip
BRANCH_QUERIES = (
    "branch_of_tip", "move_tip", "newest_of_type", "oldest_of_type", "seq_in_segment", "nth_newest",
    "copy_rows",
)  # fmt: skip


@pytest.fixture
async def database(tmp_path: Path):
    storage = await new_sqlite(tmp_path / "s.sqlite")
    samples = Samples()
    for entry in samples.tree(200):
        await storage.commit(
            [
                insert_entry(entry),
                insert_usage(samples.row()),
                set_value(value(Any, "app.v", entry.id), 1),
                append_list(list_of(Any, "app.l", "k"), 1),
            ],
            BACKGROUND,
        )
    await storage.close(BACKGROUND)
    connection = sqlite3.connect(tmp_path / "s.sqlite")
    connection.execute("ANALYZE")
    yield connection
    connection.close()


def plan(database: sqlite3.Connection, statement: str) -> list[str]:
    named = {
        "branch": "b",
        "low": 0,
        "high": 9,
        "type": "message",
        "custom_type": None,
        "limit": -1,
    }
    positional = [0] * statement.count("?")
    rows = database.execute(f"EXPLAIN QUERY PLAN {statement}", positional or named)
    return [row[3] for row in rows]


def test_a_branch_scan_walks_the_index_and_looks_entries_up(database: sqlite3.Connection) -> None:
    expected = [
        "SEARCH b USING COVERING INDEX ix_be_seq (branch_id=? AND entry_seq>? AND entry_seq<?)",
        "SEARCH e USING PRIMARY KEY (id=?)",
    ]
    typed = [
        "SEARCH b USING COVERING INDEX ix_be_type (branch_id=? AND entry_type=? AND entry_seq>? AND entry_seq<?)",
        "SEARCH e USING PRIMARY KEY (id=?)",
    ]
    assert len(SCAN_SQL) == 8
    for name, statement in SCAN_SQL.items():
        assert plan(database, statement) == (typed if name.endswith("_typed") else expected), name


def test_no_ordinary_statement_scans_or_sorts(database: sqlite3.Connection) -> None:
    statements = {name: SQL[name] for name in POINT_QUERIES}
    statements |= {name: BRANCHES[name] for name in BRANCH_QUERIES}
    for name, statement in statements.items():
        steps = plan(database, statement)
        assert not any("TEMP B-TREE" in step or step.startswith("SCAN") for step in steps), (
            name,
            steps,
        )


def test_the_chain_is_followed_by_keys(database: sqlite3.Connection) -> None:
    head, base = (plan(database, statement) for statement in CHAIN_SQL)
    # The one row that holds the entry is walked; stored tables never are.
    assert {step for step in head if step.startswith("SCAN")} <= {"SCAN holder"}
    by_entry = (
        "SEARCH branch_entries USING COVERING INDEX ix_be_entry",
        "SEARCH branch_entries USING INDEX ix_be_entry",
    )
    assert any(step.startswith(by_entry) for step in head), head
    assert [step for step in (*head, *base) if "branch_meta" in step or " m " in step] == [
        "SEARCH m USING PRIMARY KEY (branch_id=?)",
        "SEARCH branch_meta USING PRIMARY KEY (branch_id=?)",
    ]


def test_list_pages_use_the_primary_key(database: sqlite3.Connection) -> None:
    for name, comparison in (("read_list_asc", "seq>?"), ("read_list_desc", "seq<?")):
        assert plan(database, SQL[name]) == [
            f"SEARCH list_values USING PRIMARY KEY (namespace=? AND key=? AND {comparison})"
        ]


async def test_every_write_transaction_begins_immediate(tmp_path: Path) -> None:
    storage = await new_sqlite(tmp_path / "s.sqlite")
    seen: list[str] = []
    storage._file._db.set_trace_callback(seen.append)
    samples = Samples()
    entry = samples.entry(None)
    await storage.commit([insert_entry(entry), append_list(list_of(Any, "app.l"), 1)], BACKGROUND)
    await storage.scan_branch(BranchScan(start=entry.id), BACKGROUND)
    await storage.repair_branch_index(BACKGROUND)
    await storage.close(BACKGROUND)
    starts = [statement for statement in seen if statement.upper().startswith("BEGIN")]
    assert starts == ["BEGIN IMMEDIATE"] * 3  # the commit, the repair, the release of the lease
    assert [s for s in seen if s.upper().startswith(("COMMIT", "ROLLBACK"))] == ["COMMIT"] * 3


async def test_a_write_by_another_connection_makes_no_commit_fail(tmp_path: Path) -> None:
    """A deferred transaction would find its snapshot stale here and fail with "database is locked"."""
    storage = await new_sqlite(tmp_path / "s.sqlite", SystemClock())
    address = value(Any, "app.v")
    other = sqlite3.connect(tmp_path / "s.sqlite", isolation_level=None)
    for number in range(5):
        await storage.get_value(address, BACKGROUND)
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE session SET metadata = ?", (f'{{"n":{number}}}',))
        other.execute("COMMIT")
        await storage.commit([set_value(address, number)], BACKGROUND)
    other.close()
    found = await storage.get_value(address, BACKGROUND)
    assert found is not None
    assert found.value == 4
    await storage.close(BACKGROUND)
