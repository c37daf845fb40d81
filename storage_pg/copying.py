"""A session's content as of one instant, streamed over a connection of its own."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import psycopg
from psycopg.rows import TupleRow

from harness.codec import decode
from harness.entries import Entry
from harness.errors import SessionNotFound, StorageCorrupt, StorageError
from harness.storage.metadata import SessionMetadata
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.storage.rows import decode_entry, decode_json, entry_json
from harness.storage.snapshot import Snapshot, seq_of
from harness.usage import Usage, UsageRow
from storage_pg.connect import address
from storage_pg.queries import QUERIES
from storage_pg.reads import is_uuid

_ROWS_AT_ONCE = 500


class PostgresSnapshot(Snapshot):
    """One read-only transaction; rows come in batches, so memory stays flat. Blocks: use a thread.

    Close it soon: it holds back vacuum in the whole database. Raises `SessionNotFound`.
    """

    def __init__(self, dsn: str, tenant_id: str, session_id: str) -> None:
        if not is_uuid(session_id):
            raise SessionNotFound(session_id)
        self._tenant = tenant_id
        self._session = session_id
        self._names = itertools.count()
        try:
            self._connection = psycopg.connect(address(dsn, "laneway-copy"), prepare_threshold=None)
        except psycopg.Error as error:
            raise StorageError(f"the database cannot be reached: {error}") from error
        try:
            self._begin()
        except psycopg.Error as error:
            self._connection.close()
            raise StorageError(f"the database refused a snapshot: {error}") from error
        except BaseException:
            self._connection.close()
            raise

    def _begin(self) -> None:
        self._connection.execute(QUERIES["read_snapshot"])
        self._connection.execute(QUERIES["set_tenant"], (self._tenant,))
        row = self._connection.execute(QUERIES["copy_session"], (self._session,)).fetchone()
        if row is None:
            raise SessionNotFound(self._session)
        self.metadata = SessionMetadata(
            id=self._session,
            created_at=row[0],
            cwd=row[1],
            parent_session_id=row[2],
            legacy_parent_session_path=row[3],
            storage_version=row[4],
            store_generation=row[5],
            metadata=row[6] or None,
        )
        self.next_seq: int = row[7]
        self.agent: str | None = row[8]

    def _rows(self, query: str, parameters: Sequence[Any]) -> Iterator[TupleRow]:
        try:
            with self._connection.cursor(name=f"copy_{next(self._names)}") as cursor:
                cursor.itersize = _ROWS_AT_ONCE
                cursor.execute(QUERIES[query], parameters)
                yield from cursor
        except psycopg.Error as error:
            if error.sqlstate == "LW002":
                raise StorageCorrupt(str(error)) from error
            raise StorageError(f"the database refused a read: {error}") from error

    def entries(self, after_seq: int = 0) -> Iterator[Entry]:
        """All entries, or those after a sequence number."""
        for row in self._rows("copy_entries", (self._session, after_seq)):
            yield decode_entry(entry_json(*row))

    def path(self, start: str) -> Iterator[Entry]:
        """The entries from the root to `start`; raises `StorageCorrupt` when it is unknown."""
        if not is_uuid(start):
            raise StorageCorrupt(f"no entry {start} to scan from")
        for row in self._rows("copy_path", (self._tenant, self._session, start)):
            yield decode_entry(entry_json(*row))

    def values(self) -> Iterator[ValueRecord]:
        """All current values."""
        for row in self._rows("copy_values", (self._session,)):
            yield ValueRecord(*row)

    def elements(self) -> Iterator[ElementRecord]:
        """All list elements."""
        for row in self._rows("copy_elements", (self._session,)):
            yield ElementRecord(*row)

    def usage(self) -> Iterator[UsageRow]:
        """The ledger."""
        for row_id, seq, entry_id, adjustment, usage, details in self._rows(
            "copy_usage", (self._session,)
        ):
            yield UsageRow(
                id=row_id,
                seq=seq,
                usage=decode(usage, Usage),
                adjustment=adjustment,
                entry_id=msgspec.UNSET if entry_id is None else entry_id,
                details=msgspec.UNSET if details is None else decode_json(details),
            )

    def records(self) -> Iterator[Record]:
        """Everything."""
        return heapq.merge(self.entries(), self.usage(), self.values(), self.elements(), key=seq_of)

    def has_entry(self, entry_id: str) -> bool:
        """Whether the session has this entry."""
        if not is_uuid(entry_id):
            return False
        try:
            row = self._connection.execute(
                QUERIES["copy_has_entry"], (self._session, entry_id)
            ).fetchone()
        except psycopg.Error as error:
            raise StorageError(f"the database refused a read: {error}") from error
        return row is not None and bool(row[0])

    def close(self) -> None:
        """End the transaction."""
        self._connection.close()
