"""Puts the pieces of `storage_pg` together for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg

from harness.environment import Environment
from storage_pg.connect import open_pool
from storage_pg.lease import HostIdentity, HostLease
from storage_pg.sessions import NewSession, OwnedSession, PostgresSessions
from storage_pg.storage import Pool, PostgresStorage
from storage_pg.writer import SharedWriter
from tests.postgres import Database


async def wait_until(condition: Callable[[], bool]) -> None:
    """Return when it holds; the test's own time limit is the only one."""
    while not condition():  # noqa: ASYNC110  # what is waited for has no event of its own
        await asyncio.sleep(0.005)


class Kit:
    """One host process's worth of objects, and a tenant."""

    def __init__(self, database: Database, pool: Pool, writer: SharedWriter) -> None:
        self.database = database
        self.pool = pool
        self.writer = writer
        self.environment = Environment.system()
        self.tenant = self.new_tenant()
        self.lease = self.new_lease()
        self.sessions = PostgresSessions(pool, writer, self.environment, lease=self.lease)

    @staticmethod
    async def open(database: Database) -> Kit:
        """Connect and become a host."""
        pool = open_pool(database.app_dsn, size=4)
        await pool.open()
        kit = Kit(database, pool, SharedWriter(database.app_dsn))
        await kit.lease.start()
        return kit

    async def close(self) -> None:
        """Give everything back."""
        await self.lease.close()
        await self.writer.close()
        await self.pool.close()

    def new_tenant(self) -> str:
        """A tenant of its own."""
        tenant = self.environment.ids.next()
        with psycopg.connect(self.database.owner_dsn, autocommit=True) as connection:
            connection.execute(
                "INSERT INTO laneway.tenants (id, name, created_at) VALUES (%s, %s, 0)",
                (tenant, tenant),
            )
        return tenant

    def new_lease(self, role: str = "worker") -> HostLease:
        """Another host on the same database; not started."""
        return HostLease(
            self.database.direct_dsn,
            HostIdentity("test", role, "http://test"),
            self.environment.ids,
        )

    async def lose_lease(self) -> None:
        """End the lease connection from the server's side and wait for the next incarnation."""
        before = self.lease.host_id
        with psycopg.connect(self.database.admin_dsn, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(lease_pid) FROM laneway.hosts WHERE id = %s", (before,)
            )
        await wait_until(lambda: self.lease.host_id not in (before, None))

    async def flush_counts(self) -> None:
        """Have every connection of this process report its statistics, which ending it does."""
        with psycopg.connect(self.database.admin_dsn, autocommit=True) as connection:
            # Those that are there now: what ends is replaced, and the new ones have counted nothing.
            ended = connection.execute(
                "SELECT array_agg(pid) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid() "
                "AND application_name IN ('laneway', 'laneway-commit')"
            ).fetchone()
            await wait_until(
                lambda: (
                    connection.execute(
                        "SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", ended
                    ).fetchone()
                    is None
                )
            )
        await self.pool.check()

    async def open_new(self, new: NewSession | None = None) -> OwnedSession:
        """A new session, owned."""
        made = await self.sessions.create(self.tenant, new)
        return await self.sessions.open(self.tenant, made.id)

    async def new_storage(self) -> PostgresStorage:
        """The storage of a new session."""
        return (await self.open_new()).storage
