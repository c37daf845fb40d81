"""Brings a database's schema up to this build's, from the program and without a command line."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, cast

import psycopg
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql
from psycopg.rows import TupleRow
from sqlalchemy import Connection, create_engine
from sqlalchemy.pool import NullPool

from storage_pg.partitions import Period, ensure_ahead
from storage_pg.queries import QUERIES
from storage_pg.tables import SCHEMA

APP_ROLE = "laneway_app"


class SchemaBehind(RuntimeError):
    """The database's schema is older than this build: run `laneway migrate`."""


class SchemaAhead(RuntimeError):
    """A newer Laneway migrated this database: upgrade this process."""


def upgrade(
    dsn: str,
    *,
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
    """
    tell = progress or _silent
    with _locked(dsn) as connection:
        config = _config()
        config.attributes["connection"] = connection
        before = _revision(connection)
        _refuse_newer(config, before)
        with connection.begin():
            # The version table lives in the schema that the first migration makes.
            _driver(connection).execute(b"CREATE SCHEMA IF NOT EXISTS laneway")
            command.upgrade(config, "head")
        after = _revision(connection)
        tell(f"schema is at {after}" + ("" if before == after else f" (was {before or 'empty'})"))
        connection.commit()
        driver = _driver(connection)
        driver.autocommit = True
        if app_role is not None:
            _grant(driver, app_role)
        now = now_ms if now_ms is not None else time.time_ns() // 1_000_000
        made = ensure_ahead(driver, now, partitions_ahead + 1, period)
        if made:
            tell(f"made {len(made)} partitions")
        return after or ""


def current(dsn: str) -> str | None:
    """The schema's revision, None for a database without one."""
    with _connect(dsn) as connection:
        return _revision(connection)


def head() -> str:
    """The revision that this build needs."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    assert found is not None
    return found


def check(dsn: str) -> None:
    """Raise `SchemaBehind` or `SchemaAhead` unless the database is at this build's revision."""
    found = current(dsn)
    _refuse_newer(_config(), found)
    if found != head():
        raise SchemaBehind(f"schema is at {found or 'nothing'}, this build needs {head()}")


def _refuse_newer(config: Config, found: str | None) -> None:
    if found is None:
        return
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    if found not in known:
        raise SchemaAhead(f"schema is at {found}, which this build does not know")


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


def _config() -> Config:
    config = Config()
    # Found, not imported: migrations stand above this package and import it.
    spec = importlib.util.find_spec("migrations")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = spec.submodule_search_locations[0]
    config.set_main_option("script_location", folder.replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def sqlalchemy_url(dsn: str) -> str:
    """The same address for SQLAlchemy, which wants the driver's name in it."""
    scheme, separator, rest = dsn.partition("://")
    if not separator or scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ValueError("a database URL begins with postgresql://")
    return f"postgresql+psycopg://{rest}"


@contextmanager
def _connect(dsn: str) -> Generator[Connection]:
    engine = create_engine(sqlalchemy_url(dsn), poolclass=NullPool)
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
    context = MigrationContext.configure(
        connection, opts={"version_table": "schema_version", "version_table_schema": SCHEMA}
    )
    found = context.get_current_revision()
    connection.rollback()
    return found


def _silent(_message: str) -> None:
    return None
