"""The SQL of the migrations, one folder per revision, and how a migration runs it."""

from __future__ import annotations

from importlib import resources

import psycopg
from alembic import op
from procrastinate.schema import SchemaManager


def run_script(path: str) -> None:
    """Run a `.sql` file of this package, which may hold many statements."""
    _run(resources.files(__name__).joinpath(path).read_text(encoding="utf-8"))


def run_queue_schema() -> None:
    """Make the job queue's tables and functions as its installed version describes them."""
    _run(SchemaManager.get_schema())


def _run(script: str) -> None:
    # The driver itself: without parameters it takes several statements, and '%' means nothing.
    connection = op.get_bind().connection.driver_connection
    assert isinstance(connection, psycopg.Connection)
    connection.execute(script.encode())
