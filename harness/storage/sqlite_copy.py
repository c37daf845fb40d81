"""Coherent copies out of a SQLite session: a read transaction of its own, and the swap of a rewrite."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from harness.clock import Clock
from harness.entries import Entry
from harness.storage.branch_index import BranchIndex
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import BranchScan
from harness.storage.publish import publish
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.storage.rows import decode_entry, entry_json
from harness.storage.snapshot import Snapshot, seq_of
from harness.storage.sqlite_create import write_sqlite
from harness.storage.sqlite_file import (
    SQL,
    SqliteFile,
    connect,
    read_metadata,
    translated,
    usage_row,
)
from harness.usage import UsageRow

T = TypeVar("T")

_MAX_SEQ = 2**63 - 1


class SqliteSnapshot:
    """One read transaction on a connection of its own; the session's writer is not disturbed."""

    def __init__(self, path: Path) -> None:
        with translated():
            self._db = connect(path)
            try:
                self._db.execute("BEGIN")
                # The transaction's view is fixed by its first read.
                self.metadata: SessionMetadata = read_metadata(self._db)
                self.next_seq: int = self._db.execute(SQL["read_totals"]).fetchone()[0]
            except BaseException:
                self._db.close()
                raise

    def entries(self, after_seq: int = 0) -> Iterator[Entry]:
        """All entries, or those after a sequence number, by sequence."""
        everything = {
            "low": after_seq + 1,
            "high": _MAX_SEQ,
            "type": None,
            "custom_type": None,
            "limit": -1,
        }
        for row in self._db.execute(SQL["scan_entries_asc"], everything):
            yield decode_entry(entry_json(*row))

    def path(self, start: str) -> Iterator[Entry]:
        """The entries from the root to `start`."""
        query = BranchScan(start=start, order="oldestFirst")
        for row in BranchIndex(self._db).scan(query, structure=False):
            yield decode_entry(entry_json(*row))

    def values(self) -> Iterator[ValueRecord]:
        """All current values, by sequence."""
        for row in self._db.execute(SQL["all_values"]):
            yield ValueRecord(*row)

    def elements(self) -> Iterator[ElementRecord]:
        """All list elements, by sequence."""
        for row in self._db.execute(SQL["all_elements"]):
            yield ElementRecord(*row)

    def usage(self) -> Iterator[UsageRow]:
        """The ledger, by sequence."""
        for row in self._db.execute(SQL["scan_usage_asc"], (0, _MAX_SEQ, -1)):
            yield usage_row(row)

    def records(self) -> Iterator[Record]:
        """Everything, by sequence."""
        return heapq.merge(self.entries(), self.usage(), self.values(), self.elements(), key=seq_of)

    def has_entry(self, entry_id: str) -> bool:
        """Whether the session has this entry."""
        return self._db.execute(SQL["entry_exists"], (entry_id,)).fetchone() is not None

    def close(self) -> None:
        """End the read transaction."""
        self._db.close()


def read_sqlite_metadata(path: Path) -> SessionMetadata:
    """The metadata of a session file that may be open elsewhere."""
    with translated():
        connection = connect(path)
        try:
            return read_metadata(connection)
        finally:
            connection.close()


def delete_sqlite(path: Path, clock: Clock, lease_ttl_ms: int) -> None:
    """Remove a session's file; raises `SessionInUse` when a writer or a reader has it."""
    _owned(path, clock, lease_ttl_ms, lambda owner: owner.retire(path.unlink))


def rewrite_sqlite(
    path: Path,
    clock: Clock,
    lease_ttl_ms: int,
    rewrite: Callable[[Snapshot, SessionMetadata], tuple[SessionMetadata, Iterable[Record]]],
) -> SessionMetadata:
    """Replace a session's file by what `rewrite` makes of its content (§2.9).

    The old file stays until the new one is complete. Raises `SessionInUse` when a writer or a reader
    has it.
    """
    built = path.with_name(f".{path.name}.rewritten")

    def replace(owner: SqliteFile) -> SessionMetadata:
        built.unlink(missing_ok=True)
        snapshot = SqliteSnapshot(path)
        try:
            metadata, records = rewrite(snapshot, owner.metadata)
            write_sqlite(built, metadata, records, next_seq=snapshot.next_seq)
        finally:
            snapshot.close()
        owner.retire(lambda: publish(built, path, replace=True))
        return metadata

    try:
        return _owned(path, clock, lease_ttl_ms, replace)
    finally:
        built.unlink(missing_ok=True)


def _owned(path: Path, clock: Clock, lease_ttl_ms: int, act: Callable[[SqliteFile], T]) -> T:
    """Run an act that retires the file, as its owner."""
    owner = SqliteFile(path, clock, synchronous="full", lease_ttl_ms=lease_ttl_ms)
    try:
        result = act(owner)
    except BaseException:
        owner.close()
        raise
    # Giving the lease up in a file that is gone would leave a journal beside its successor.
    owner.abandon()
    return result
