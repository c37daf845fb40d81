"""Makes a session's SQLite file whole before anybody can see it (§1.7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import assert_never

import msgspec

from harness.codec import encode_str
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
    custom_type_of,
    entry_type,
    payload_of,
)
from harness.errors import InvalidArgument
from harness.storage.branch_index import BranchIndex
from harness.storage.metadata import SessionMetadata
from harness.storage.publish import publish, staging
from harness.storage.queries import load_queries, load_script
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.storage.rows import payload_json
from harness.usage import ZERO_USAGE, UsageRow, add_usage

_SQL = load_queries("harness.storage.sqlite_sql", "queries.sql")
_SCHEMA = load_script("harness.storage.sqlite_sql", "schema.sql")


class _Writer:
    """Fills a new database, record by record, in sequence order."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._branches = BranchIndex(connection)
        self._usage = ZERO_USAGE
        self._messages = 0
        self._next_seq = 1

    def add(self, record: Record) -> None:
        """One record under its own sequence number."""
        run = self._connection.execute
        match record:
            case ValueRecord(seq=seq, namespace=namespace, key=key, json=text):
                run(_SQL["set_value"], (namespace, key, seq, text))
            case ElementRecord(seq=seq, namespace=namespace, key=key, json=text):
                run(_SQL["append_list"], (namespace, key, seq, text))
            case UsageRow():
                self._add_usage(record)
            case MessageEntry() | CompactionEntry() | BranchSummaryEntry() | CustomEntry():
                self._add_entry(record)
            case _:
                assert_never(record)
        self._next_seq = record.seq + 1

    def _add_usage(self, row: UsageRow) -> None:
        entry_id = None if row.entry_id is msgspec.UNSET else row.entry_id
        details = None if row.details is msgspec.UNSET else encode_str(row.details)
        self._connection.execute(
            _SQL["insert_usage"],
            (row.id, row.seq, entry_id, row.adjustment, encode_str(row.usage), details),
        )
        self._usage = add_usage(self._usage, row.usage)

    def _add_entry(self, entry: Entry) -> None:
        type_ = entry_type(entry)
        self._connection.execute(
            _SQL["insert_entry"],
            (
                entry.id,
                entry.parent_id,
                entry.seq,
                type_,
                custom_type_of(entry),
                entry.timestamp,
                payload_json(payload_of(entry)),
            ),
        )
        self._branches.append(entry.id, entry.seq, type_, entry.parent_id)
        self._messages += type_ == "message"

    def finish(self, metadata: SessionMetadata, next_seq: int) -> None:
        """Write the session's own row."""
        self._connection.execute(
            _SQL["insert_session"],
            (
                metadata.id,
                metadata.created_at,
                metadata.cwd,
                metadata.parent_session_id,
                metadata.legacy_parent_session_path,
                metadata.storage_version,
                metadata.store_generation,
                None if metadata.metadata is None else encode_str(metadata.metadata),
                self._messages,
                encode_str(self._usage),
                max(next_seq, self._next_seq),
            ),
        )


def write_sqlite(
    path: Path,
    metadata: SessionMetadata,
    records: Iterable[Record],
    *,
    next_seq: int = 1,
    replace: bool = False,
) -> None:
    """Write a session file that holds just these records, and put it in place when it is complete.

    `next_seq` is needed only when it is higher than the last record's successor. Raises
    `InvalidArgument` when a file is there already, unless `replace`.
    """
    if not replace and path.exists():
        raise InvalidArgument(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    with staging(path) as staged:
        connection = sqlite3.connect(staged, isolation_level=None, check_same_thread=False)
        try:
            connection.executescript(_SCHEMA)
            # Nobody sees the file before it is complete: journal and syncs would protect nothing.
            connection.execute("PRAGMA journal_mode = OFF")
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            writer = _Writer(connection)
            for record in records:
                writer.add(record)
            writer.finish(metadata, next_seq)
            connection.execute("COMMIT")
        finally:
            connection.close()
        publish(staged, path, replace=replace)


def create_sqlite(path: Path, metadata: SessionMetadata) -> None:
    """Create the file of a new session that holds nothing."""
    write_sqlite(path, metadata, ())
