"""Migrations make what the metadata says, once, and hold everybody to row-level security."""

from __future__ import annotations

import threading

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect

from storage_pg import migrate, schema
from storage_pg.connect import sqlalchemy_url
from storage_pg.layout import PARTITIONED, SCHEMA
from storage_pg.release import THIS_BUILD, SchemaAhead, SchemaBehind
from storage_pg.tables import METADATA, TENANT_OWNED
from tests.postgres import APP, Cluster, Database


def test_metadata_and_migrations_agree(database: Database) -> None:
    engine = create_engine(sqlalchemy_url(database.owner_dsn))
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "include_schemas": True,
                "compare_type": True,
                "version_table": "schema_version",
                "version_table_schema": SCHEMA,
                "include_name": _ours,
            },
        )
        assert compare_metadata(context, METADATA) == []
        found = inspect(connection)
        for table in METADATA.sorted_tables:
            key = found.get_pk_constraint(table.name, SCHEMA)["constrained_columns"]
            assert key == [column.name for column in table.primary_key.columns], table.name
            for column in found.get_columns(table.name, SCHEMA):
                declared = table.columns[column["name"]]
                assert column["nullable"] == declared.nullable, (table.name, column["name"])
                assert (column["default"] is None) == (declared.server_default is None)
    engine.dispose()


def _ours(name: str | None, kind: str, _parents: object) -> bool:
    if kind == "schema":
        return name == SCHEMA
    # Partitions are the server's business: they follow their table.
    return kind != "table" or name in {table.name for table in METADATA.sorted_tables}


def test_upgrading_again_changes_nothing(fresh_database: Database) -> None:
    heard: list[str] = []
    assert migrate.upgrade(fresh_database.owner_dsn, progress=heard.append) == schema.head()
    assert heard == [f"schema is at {schema.head()}"]
    schema.check(fresh_database.owner_dsn)


def test_several_processes_may_migrate_at_once(pg_cluster: Cluster) -> None:
    empty = pg_cluster.empty_database()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            migrate.upgrade(empty.owner_dsn)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert schema.current(empty.owner_dsn) == schema.head()
    pg_cluster.drop(empty.name)


def test_an_empty_and_a_newer_database_are_told_apart(pg_cluster: Cluster) -> None:
    empty = pg_cluster.empty_database()
    assert schema.current(empty.owner_dsn) is None
    with pytest.raises(SchemaBehind):
        schema.check(empty.owner_dsn)
    migrate.upgrade(empty.owner_dsn)
    with psycopg.connect(empty.owner_dsn, autocommit=True) as owner:
        owner.execute("UPDATE laneway.schema_version SET version_num = '9999'")
        owner.execute("UPDATE laneway.schema_floor SET revision = '9999'")
    with pytest.raises(SchemaAhead):
        schema.check(empty.owner_dsn)
    with pytest.raises(SchemaAhead):
        migrate.upgrade(empty.owner_dsn)
    pg_cluster.drop(empty.name)


def test_a_missing_application_role_is_named(pg_cluster: Cluster) -> None:
    empty = pg_cluster.empty_database()
    with pytest.raises(LookupError, match="nobody_here"):
        migrate.upgrade(empty.owner_dsn, app_role="nobody_here")
    pg_cluster.drop(empty.name)


def test_every_table_with_a_tenant_is_held_to_it(database: Database) -> None:
    with psycopg.connect(database.owner_dsn) as owner:
        rows = owner.execute(
            """
            SELECT c.relname, c.relrowsecurity AND c.relforcerowsecurity,
                   array_agg(p.polname::text ORDER BY p.polname)
            FROM pg_class AS c
            JOIN pg_namespace AS n ON n.oid = c.relnamespace AND n.nspname = 'laneway'
            JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
            LEFT JOIN pg_policy AS p ON p.polrelid = c.oid
            WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
            GROUP BY 1, 2
            """
        ).fetchall()
    assert {name for name, _, _ in rows} == set(TENANT_OWNED)
    for name, forced, policies in rows:
        assert forced, name
        assert policies == ["owner_sees_all", "tenant_only"], name


def test_the_application_reaches_partitions_only_through_their_tables(database: Database) -> None:
    # Row-level security of a partitioned table does not reach who names a partition itself.
    with psycopg.connect(database.app_dsn) as app:
        rows = app.execute(
            "SELECT c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
            "WHERE n.nspname = 'laneway' AND c.relispartition AND c.relkind = 'r' "
            "AND has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE')"
        ).fetchall()
    assert rows == []
    assert len(PARTITIONED) == 4


def test_the_application_role_is_powerless(database: Database) -> None:
    with psycopg.connect(database.app_dsn) as app:
        assert app.execute(
            "SELECT rolsuper, rolbypassrls, rolcreaterole, rolcreatedb FROM pg_roles "
            "WHERE rolname = %s",
            (APP,),
        ).fetchone() == (False, False, False, False)
        assert app.execute(
            "SELECT count(*) FROM pg_class WHERE relowner = %s::regrole", (APP,)
        ).fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute("ALTER TABLE laneway.sessions DISABLE ROW LEVEL SECURITY")


def test_the_chain_is_read_as_alembic_reads_it() -> None:
    scripts = ScriptDirectory.from_config(migrate._config(THIS_BUILD))
    theirs = [script.revision for script in scripts.walk_revisions()]
    assert [each.name for each in THIS_BUILD.revisions] == theirs[::-1]
