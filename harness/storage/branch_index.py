"""The segmented branch index of a SQLite session: any root path in a few indexed queries (§2.6).

A branch is one physical segment of rows in `branch_entries`. Below its base it continues in another
branch, up to the base's sequence number and no further. An entry that continues a branch's tip
is one more row. An entry anywhere else starts a branch of its own, which copies the rows since the
newest compaction, so that building a context reads one segment, and refers to the rest.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from harness.errors import StorageCorrupt
from harness.storage.protocol import BranchScan
from harness.storage.queries import load_queries

_SQL = load_queries("harness.storage.sqlite_sql", "branches.sql")
SCAN_SQL = {name: text for name, text in _SQL.items() if name.startswith(("scan_", "structure_"))}
CHAIN_SQL = (_SQL["segment_of_entry"], _SQL["base_segment"])

MAX_COPIED_ROWS = 1_000
"""A divergence copies at most this many rows, also where no compaction bounds it."""

# Any: sqlite3 rows are tuples of whatever the columns hold.
Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of a branch that belongs to a path: sequence numbers above `low`, up to `high`."""

    branch_id: str
    low: int
    high: int


class BranchIndex:
    """Appends to the index inside the caller's transaction, and reads paths from it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def append(self, entry_id: str, seq: int, entry_type: str, parent_id: str | None) -> None:
        """Index a new entry; raises `StorageCorrupt` when the index knows nothing of its parent."""
        run = self._connection.execute
        if parent_id is None:
            run(_SQL["insert_branch"], (entry_id, entry_id, seq, None, None))
            branch_id = entry_id
        else:
            tip = run(_SQL["branch_of_tip"], (parent_id,)).fetchone()
            if tip is not None:
                branch_id = tip[0]
                run(_SQL["move_tip"], (entry_id, seq, branch_id))
            else:
                branch_id = entry_id
                base_branch, base_seq = self._diverge(branch_id, parent_id)
                run(_SQL["insert_branch"], (branch_id, entry_id, seq, base_branch, base_seq))
        run(_SQL["append_row"], (branch_id, entry_id, seq, entry_type))

    def _diverge(self, branch_id: str, parent_id: str) -> tuple[str | None, int | None]:
        """Copy the newest rows of the parent's path into a new branch; returns its base.

        The copy ends below the newest compaction of the whole chain (the newest one of the nearest
        segment is not enough: the context may begin further down), or after `MAX_COPIED_ROWS`.
        """
        run = self._connection.execute
        budget = MAX_COPIED_ROWS
        for segment in self.chain(parent_id):
            branch, low, high = segment.branch_id, segment.low, segment.high
            compaction = run(_SQL["newest_of_type"], (branch, "compaction", low, high)).fetchone()
            floor = low if compaction is None else compaction[0]
            beyond = run(_SQL["nth_newest"], (branch, floor, high, budget)).fetchone()
            cut = floor if beyond is None else beyond[0]
            budget -= run(_SQL["copy_rows"], (branch_id, branch, cut, high)).rowcount
            if compaction is not None or beyond is not None:
                return branch, cut
        return None, None

    def chain(self, start: str) -> Iterator[Segment]:
        """The segments that make up the path from `start` to the root, newest first.

        Each is looked up when it is asked for: whoever finds what it wants in the newest one never
        pays for the length of the history.
        """
        run = self._connection.execute
        head = run(CHAIN_SQL[0], (start,)).fetchone()
        if head is None:
            raise StorageCorrupt(f"the branch index knows no entry {start}")
        branch_id, low, high, base = head
        yield Segment(branch_id, low, high)
        while base is not None:
            found = run(CHAIN_SQL[1], (base,)).fetchone()
            if found is None:
                raise StorageCorrupt(f"the branch index has lost branch {base}")
            high = low
            branch_id, low, base = found
            yield Segment(branch_id, low, high)

    def scan(self, query: BranchScan, *, structure: bool) -> Iterator[Row]:
        """The rows of a branch scan, in its order (§2.5)."""
        newest_first = query.order == "newestFirst"
        statement = SCAN_SQL[
            ("structure_" if structure else "scan_")
            + ("newest" if newest_first else "oldest")
            + ("" if query.type is None else "_typed")
        ]
        left = query.limit
        for segment in self._newest_first(query) if newest_first else self._oldest_first(query):
            if segment.low >= segment.high:
                continue
            rows = self._connection.execute(
                statement,
                {
                    "branch": segment.branch_id,
                    "low": segment.low,
                    "high": segment.high,
                    "type": query.type,
                    "custom_type": query.custom_type,
                    "limit": -1 if left is None else left,
                },
            )
            for row in rows:
                yield row
                if left is not None:
                    left -= 1
            if left == 0:
                return

    def _newest_first(self, query: BranchScan) -> Iterator[Segment]:
        """What stop and cursor leave of each segment, ending with the one that holds the stop."""
        for segment in self.chain(query.start):
            stop = max(self._stops(query, segment, "newest_of_type"), default=None)
            low = segment.low if stop is None else stop - 1
            high = segment.high if query.cursor is None else min(segment.high, query.cursor - 1)
            yield Segment(segment.branch_id, low, high)
            if stop is not None:
                return

    def _oldest_first(self, query: BranchScan) -> Iterator[Segment]:
        """The same from the root on: the whole chain is needed to find it."""
        for segment in reversed(list(self.chain(query.start))):
            stop = min(self._stops(query, segment, "oldest_of_type"), default=None)
            low = segment.low if query.cursor is None else max(segment.low, query.cursor)
            yield Segment(segment.branch_id, low, segment.high if stop is None else stop)
            if stop is not None:
                return

    def _stops(self, query: BranchScan, segment: Segment, of_type: str) -> list[int]:
        """Where a segment ends the scan: by type, by id, by neither."""
        found: list[int] = []
        for name, wanted in ((of_type, query.stop_at_type), ("seq_in_segment", query.stop_at_id)):
            if wanted is None:
                continue
            row = self._connection.execute(
                _SQL[name], (segment.branch_id, wanted, segment.low, segment.high)
            ).fetchone()
            if row is not None:
                found.append(row[0])
        return found

    def repair(self) -> int:
        """Rebuild the whole index from the entries, inside the caller's transaction.

        Returns the number of entries indexed. Nothing calls this by itself: a read that meets a
        damaged index fails, and a person decides.
        """
        self._connection.execute(_SQL["clear_rows"])
        self._connection.execute(_SQL["clear_branches"])
        count = 0
        for entry_id, parent_id, seq, entry_type in self._connection.execute(
            _SQL["entries_in_order"]
        ):
            self.append(entry_id, seq, entry_type, parent_id)
            count += 1
        return count
