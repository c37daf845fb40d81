"""Brings a database's schema up to this build's, from the program and without a command line."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias, cast

import psycopg
from alembic import command
from alembic.config import Config
from psycopg import sql
from psycopg.rows import TupleRow
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from storage_pg import schema
from storage_pg.connect import KEEPALIVE, sqlalchemy_url
from storage_pg.layout import SCHEMA
from storage_pg.partitions import Period, ensure_ahead
from storage_pg.queries import QUERIES
from storage_pg.release import THIS_BUILD, Release, SchemaAhead, migrations_folder

APP_ROLE = "laneway_app"

# Which of a release's steps to take: those before its code is deployed, those after, or all at once.
Steps: TypeAlias = Literal["before", "after", "all"]


class StepsBeforePending(RuntimeError):
    """The steps before the deploy were not taken yet: run `laneway migrate --before`, replace every
    process, and only then run `laneway migrate --after`."""

    def __init__(self) -> None:
        super().__init__(StepsBeforePending.__doc__)


def upgrade(
    dsn: str,
    *,
    steps: Steps = "all",
    release: Release = THIS_BUILD,
    app_role: str | None = APP_ROLE,
    period: Period = "month",
    partitions_ahead: int = 3,
    now_ms: int | None = None,
    progress: Callable[[str], None] | None = None,
) -> str:
    """Migrate to this build's schema, grant the application role its rights, make partitions ahead.

    `dsn` is the owner's, direct (a transaction-mode pooler would lose the lock). Waits while
    another process migrates. Each migration is part of one transaction; calling it again does no
    harm. Without `app_role` nothing is granted: application and owner are then one role, and
    row-level security holds nobody. Returns the revision.

    While processes of the release before still run, take only the steps "before"; when none of
    them is left, the steps "after". Raises `SchemaAhead`, and `StepsBeforePending` for "after" when
    the others are missing.
    """
    tell = progress or _silent
    with _locked(dsn) as connection:
        before = _revision(connection)
        _plan(release, before, steps)
        target = release.needed if steps == "before" else release.head
        if not release.reached(before, target):
            _apply(connection, release, target)
        after = _revision(connection)
        tell(f"schema is at {after}" + ("" if before == after else f" (was {before or 'empty'})"))
        driver = _driver(connection)
        driver.autocommit = True
        if app_role is not None:
            _grant(driver, app_role)
        now = now_ms if now_ms is not None else time.time_ns() // 1_000_000
        made = ensure_ahead(driver, now, partitions_ahead + 1, period)
        if made:
            tell(f"made {len(made)} partitions")
        return after or ""


def _plan(release: Release, found: str | None, steps: Steps) -> None:
    if found is not None and not release.knows(found):
        raise SchemaAhead(f"schema is at {found}, which this build does not know")
    if steps == "after" and not release.reached(found, release.needed):
        raise StepsBeforePending


def _apply(connection: Connection, release: Release, target: str) -> None:
    config = _config(release)
    config.attributes["connection"] = connection
    with connection.begin():
        driver = _driver(connection)
        # The version table lives in the schema that the first migration makes.
        driver.execute(QUERIES["schema_create"])
        driver.execute(QUERIES["schema_floor_create"])
        command.upgrade(config, target)
        driver.execute(QUERIES["schema_floor_set"], (release.floor(target),))


def _config(release: Release) -> Config:
    config = Config()
    folder = str(migrations_folder())
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "newline")
    places = "\n".join(str(place) for place in release.folders)
    config.set_main_option("version_locations", places.replace("%", "%%"))
    return config


def _grant(driver: psycopg.Connection[TupleRow], role: str) -> None:
    row = driver.execute(QUERIES["role_exists"], (role,)).fetchone()
    if row is None or not row[0]:
        raise LookupError(
            f"there is no role {role}: create it (LOGIN, nothing else) or migrate without one"
        )
    grantee = sql.Identifier(role)
    driver.execute(sql.SQL(QUERIES["grant_schema"]).format(role=grantee))
    for (name,) in driver.execute(QUERIES["grantable_tables"]).fetchall():
        table = sql.Identifier(SCHEMA, name)
        driver.execute(sql.SQL(QUERIES["grant_table"]).format(table=table, role=grantee))


@contextmanager
def _connect(dsn: str) -> Generator[Connection]:
    engine = create_engine(sqlalchemy_url(dsn), poolclass=NullPool, connect_args=dict(KEEPALIVE))
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


@contextmanager
def _locked(dsn: str) -> Generator[Connection]:
    with _connect(dsn) as connection:
        _driver(connection).execute(QUERIES["migration_lock"])
        connection.commit()
        yield connection


def _driver(connection: Connection) -> psycopg.Connection[TupleRow]:
    # Any: SQLAlchemy does not say which driver it uses; the URL does.
    driver: Any = connection.connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return cast("psycopg.Connection[TupleRow]", driver)


def _revision(connection: Connection) -> str | None:
    driver = _driver(connection)
    found = schema.revision(driver)
    driver.rollback()
    return found


def _silent(_message: str) -> None:
    return None
