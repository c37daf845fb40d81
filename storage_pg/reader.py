"""A session's committed data, read without owning it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import psycopg

from harness.context import Context
from harness.errors import StorageError
from harness.storage.protocol import CommitResult
from harness.storage.writes import Write
from storage_pg.queries import QUERIES
from storage_pg.reads import Fetch, Row, SessionReads
from storage_pg.storage import Pool, fetch_from, read_error


class ReadOnlySession(StorageError):
    """This storage reads only; claim the session to write to it."""


class SessionReader(SessionReads):
    """A `Storage` that refuses to commit. Without `fetch` each read takes a pooled connection."""

    def __init__(
        self, pool: Pool, tenant_id: str, session_id: str, fetch: Fetch | None = None
    ) -> None:
        async def from_pool(query: str, parameters: Sequence[object]) -> list[Row]:
            return await fetch_from(pool, query, parameters)

        super().__init__(tenant_id, session_id, fetch or from_pool)

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """Always raises `ReadOnlySession`."""
        raise ReadOnlySession("this session is open for reading only")

    async def close(self, context: Context) -> None:
        """Nothing is held."""


@asynccontextmanager
async def open_snapshot(
    pool: Pool, tenant_id: str, session_id: str
) -> AsyncGenerator[SessionReader]:
    """A reader whose reads all see the same instant, in one transaction on one connection."""
    try:
        async with pool.connection() as connection, connection.transaction():
            await connection.execute(QUERIES["read_snapshot"])

            async def fetch(query: str, parameters: Sequence[object]) -> list[Row]:
                try:
                    cursor = await connection.execute(QUERIES[query], parameters)
                    return await cursor.fetchall()
                except psycopg.Error as error:
                    raise read_error(error) from error

            yield SessionReader(pool, tenant_id, session_id, fetch)
    except psycopg.Error as error:
        raise read_error(error) from error
