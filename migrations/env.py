"""Alembic's entry point: runs the migrations on the connection that `storage_pg.migrate` opened."""

from alembic import context
from sqlalchemy import Connection

from storage_pg.layout import SCHEMA
from storage_pg.tables import METADATA


def run(connection: Connection) -> None:
    """Apply or check migrations inside the caller's transaction."""
    context.configure(
        connection=connection,
        target_metadata=METADATA,
        version_table="schema_version",
        version_table_schema=SCHEMA,
    )
    context.run_migrations()


run(context.config.attributes["connection"])
