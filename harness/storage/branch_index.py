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
CHAIN_SQL = _SQL["chain"]

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

    def chain(self, start: str) -> list[Segment]:
        """The segments that make up the path from `start` to the root, newest first."""
        rows = self._connection.execute(CHAIN_SQL, (start,)).fetchall()
        if not rows:
            raise StorageCorrupt(f"the branch index knows no entry {start}")
        return [Segment(*row) for row in rows]

    def scan(self, query: BranchScan, *, structure: bool) -> Iterator[Row]:
        """The rows of a branch scan, in its order (§2.5)."""
        newest_first = query.order == "newestFirst"
        segments = self.chain(query.start)
        if not newest_first:
            segments.reverse()
        floor, ceiling = self._bounds(query, segments)
        statement = SCAN_SQL[
            ("structure_" if structure else "scan_")
            + ("newest" if newest_first else "oldest")
            + ("" if query.type is None else "_typed")
        ]
        left = query.limit
        for segment in segments:
            low, high = max(segment.low, floor), min(segment.high, ceiling)
            if low >= high:
                continue
            rows = self._connection.execute(
                statement,
                {
                    "branch": segment.branch_id,
                    "low": low,
                    "high": high,
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

    def _bounds(self, query: BranchScan, segments: list[Segment]) -> tuple[int, int]:
        """The range above the first number and up to the second that stops and cursor leave over."""
        floor, ceiling = 0, segments[0].high if query.order == "newestFirst" else segments[-1].high
        stops = [
            seq for seq in (self._stop_type(query, segments), self._stop_id(query, segments)) if seq
        ]
        if query.order == "newestFirst":
            floor = max([floor, *(seq - 1 for seq in stops)])
            if query.cursor is not None:
                ceiling = min(ceiling, query.cursor - 1)
        else:
            ceiling = min([ceiling, *stops])
            if query.cursor is not None:
                floor = max(floor, query.cursor)
        return floor, ceiling

    def _stop_type(self, query: BranchScan, segments: list[Segment]) -> int | None:
        if query.stop_at_type is None:
            return None
        name = "newest_of_type" if query.order == "newestFirst" else "oldest_of_type"
        for segment in segments:
            found = self._connection.execute(
                _SQL[name], (segment.branch_id, query.stop_at_type, segment.low, segment.high)
            ).fetchone()
            if found is not None:
                return found[0]
        return None

    def _stop_id(self, query: BranchScan, segments: list[Segment]) -> int | None:
        if query.stop_at_id is None:
            return None
        for segment in segments:
            found = self._connection.execute(
                _SQL["seq_in_segment"],
                (segment.branch_id, query.stop_at_id, segment.low, segment.high),
            ).fetchone()
            if found is not None:
                return found[0]
        return None

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
