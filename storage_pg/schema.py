"""Which schema a database has, and whether this build's code can work with it.

Every process asks this when it starts, so it asks the database directly: Alembic and SQLAlchemy,
which take longer to load than everything else of a worker, are for those who migrate.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import psycopg
from psycopg.rows import TupleRow

from storage_pg.connect import address
from storage_pg.queries import QUERIES
from storage_pg.release import THIS_BUILD, Release


def current(dsn: str) -> str | None:
    """The schema's revision, None for a database without one."""
    with _connect(dsn) as connection:
        return revision(connection)


def head() -> str:
    """The newest revision of this build."""
    return THIS_BUILD.head


def check(dsn: str, *, release: Release = THIS_BUILD) -> None:
    """Raise `SchemaBehind` or `SchemaAhead` unless this build's code works with the database's schema.

    It does from the release's steps before the deploy on, until the steps after the next one's.
    """
    with _connect(dsn) as connection:
        found = revision(connection)
        release.accept(found, None if found is None else _floor(connection))


def revision(connection: psycopg.Connection[TupleRow]) -> str | None:
    """The same as `current` for whoever is connected."""
    return _one(connection, "schema_revision_exists", "schema_revision_get")


def _floor(connection: psycopg.Connection[TupleRow]) -> str | None:
    return _one(connection, "schema_floor_exists", "schema_floor_get")


def _one(connection: psycopg.Connection[TupleRow], exists: str, get: str) -> str | None:
    there = connection.execute(QUERIES[exists]).fetchone()
    row = connection.execute(QUERIES[get]).fetchone() if there == (True,) else None
    return None if row is None else str(row[0])


@contextmanager
def _connect(dsn: str) -> Generator[psycopg.Connection[TupleRow]]:
    with psycopg.connect(
        address(dsn, "laneway-schema"), autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection
