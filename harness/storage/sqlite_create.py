"""Makes a session's SQLite file whole before anybody can see it (§1.7)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from harness.codec import encode_str
from harness.storage.metadata import SessionMetadata
from harness.storage.publish import publish, staging_path
from harness.storage.queries import load_queries, load_script
from harness.usage import EMPTY_STATS, SessionStats

_SQL = load_queries("harness.storage.sqlite_sql", "queries.sql")
_SCHEMA = load_script("harness.storage.sqlite_sql", "schema.sql")


def begin_file(path: Path) -> sqlite3.Connection:
    """A new database with the schema, in an open transaction, at its staging path."""
    staged = staging_path(path)
    staged.parent.mkdir(parents=True, exist_ok=True)
    staged.unlink(missing_ok=True)
    connection = sqlite3.connect(staged, isolation_level=None, check_same_thread=False)
    connection.executescript(_SCHEMA)
    # Nobody can see the file before it is complete: journal and syncs would protect nothing.
    connection.execute("PRAGMA journal_mode = OFF")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    return connection


def finish_file(
    connection: sqlite3.Connection,
    path: Path,
    metadata: SessionMetadata,
    *,
    stats: SessionStats = EMPTY_STATS,
    next_seq: int = 1,
    replace: bool = False,
) -> None:
    """Write the session row, make the file durable, and put it in place.

    Raises `InvalidArgument` when a file is there already, unless `replace`.
    """
    connection.execute(
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
            stats.message_count,
            encode_str(stats.usage),
            next_seq,
        ),
    )
    connection.execute("COMMIT")
    connection.close()
    publish(staging_path(path), path, replace=replace)


def create_sqlite(path: Path, metadata: SessionMetadata) -> None:
    """Create the file of a new session that holds nothing."""
    finish_file(begin_file(path), path, metadata)
