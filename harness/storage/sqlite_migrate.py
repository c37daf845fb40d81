"""Brings a SQLite session to the current storage version, one transaction for each step (§7.3)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from harness.storage.migrations import Migration, Mutable, Schema, Step
from harness.storage.queries import load_queries
from harness.storage.records import ElementRecord, ValueRecord

_SQL = load_queries("harness.storage.sqlite_sql", "queries.sql")
_PAGE = 1_000


def migrate_sqlite(connection: sqlite3.Connection, stored: int, schema: Schema) -> int:
    """Run the steps that are missing, under the lease that the caller holds; returns the version.

    A crash between two steps leaves the version of the first; the next opening goes on from there.
    Raises `NewerVersion`.
    """
    for migration in schema.pending(stored):
        connection.execute("BEGIN IMMEDIATE")
        try:
            _run(connection, migration)
            connection.execute(_SQL["write_storage_version"], (migration.source + 1,))
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        stored = migration.source + 1
    return stored


class _StoredValues:
    """Reads values of the running transaction; they are replaced only when the step is over."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def get(self, namespace: str, key: str) -> str | None:
        """The JSON text of a value, or None."""
        row = self._connection.execute(_SQL["get_value"], (namespace, key)).fetchone()
        return None if row is None else row[0]


def _run(connection: sqlite3.Connection, migration: Migration) -> None:
    step = Step(migration, _StoredValues(connection))
    # Values are few by design; what becomes of them is held until every conversion has read its
    # neighbours as they were.
    decided = list(step.apply(_values(connection)))
    new_values = list(_convert_lists(connection, step))
    for before, after in decided:
        if after != before:
            connection.execute(_SQL["delete_value"], (before.namespace, before.key))
    for before, after in decided:
        if after is not None and after != before:
            _write(connection, after)
    for record in new_values:
        _write(connection, record)


def _convert_lists(connection: sqlite3.Connection, step: Step) -> Iterator[Mutable]:
    """Convert elements page by page in sequence order; yields what became of elements that are values
    now, to be written with the others."""
    after_seq = 0
    while rows := connection.execute(_SQL["elements_page"], (after_seq, _PAGE)).fetchall():
        after_seq = rows[-1][0]
        for before, after in step.apply(ElementRecord(*row) for row in rows):
            if after == before:
                continue
            connection.execute(_SQL["delete_element"], (before.namespace, before.key, before.seq))
            if isinstance(after, ElementRecord):
                _write(connection, after)
            elif after is not None:
                yield after


def _values(connection: sqlite3.Connection) -> list[ValueRecord]:
    return [ValueRecord(*row) for row in connection.execute(_SQL["all_values"])]


def _write(connection: sqlite3.Connection, record: Mutable) -> None:
    name = "set_value" if isinstance(record, ValueRecord) else "append_list"
    connection.execute(_SQL[name], (record.namespace, record.key, record.seq, record.json))
