"""A small fleet in one process: several hosts on one real database, and what tests ask of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import psycopg

from harness.codec import decode
from harness.context import BACKGROUND
from harness.environment import Environment
from harness.errors import TaggedError
from harness.operation.results import OperationAdmission
from harness.result import Err, Ok
from harness.runtime.requests import PromptRequest
from harness.telemetry_otel import Tracing
from storage_pg.sessions import NewSession
from tests.postgres import Database
from workers.commands import Accept, Command, Reply
from workers.ending import end_tasks
from workers.host import Role, SessionHost
from workers.jobs import JobRunner
from workers.settings import Settings
from workers.watching import EndItem, SnapshotItem, StreamItem

SECRET = "a secret of the tests only"


async def eventually(condition: Callable[[], Awaitable[bool] | bool]) -> None:
    """Return when it holds; the test's own time limit is the only one."""
    while True:
        held = condition()
        if held if isinstance(held, bool) else await held:
            return
        await asyncio.sleep(0.01)


class Fleet:
    """Hosts on one database, a tenant, and the database's own view of things."""

    def __init__(self, database: Database, tracing: Tracing | None = None) -> None:
        self.database = database
        self.tracing = tracing
        self.hosts: list[SessionHost] = []
        self._runners: dict[SessionHost, JobRunner] = {}
        self.tenant = "01900000-0000-7000-8000-000000000001"
        self._sql(
            "INSERT INTO laneway.tenants (id, name, created_at) VALUES (%s, 't', 0)", self.tenant
        )

    def settings(self, **changes: Any) -> Settings:
        """What a host of this fleet is configured with."""
        given = {
            "database_url": self.database.app_dsn,
            "direct_database_url": self.database.direct_dsn,
            "cluster_secret": SECRET,
            "models": [{"provider": "scripted", "modelId": "prompted"}],
            "tools": "tests.workers.tools:registry",
            "retry_base_ms": 50,
            "linger_ms": 20,
            "pool_size": 4,
        }
        return Settings(**{**given, **changes})

    async def host(
        self, role: Role = "worker", *, jobs: bool = True, **changes: Any
    ) -> SessionHost:
        """Start a host; a worker takes jobs unless told not to."""
        host = SessionHost(self.settings(**changes), role, tracing=self.tracing)
        self.hosts.append(host)
        await host.start()
        if role == "worker" and jobs:
            runner = self._runners[host] = JobRunner(host)
            await runner.start()
        return host

    async def worker(self, **changes: Any) -> SessionHost:
        """Start a worker."""
        return await self.host("worker", **changes)

    async def api(self, **changes: Any) -> SessionHost:
        """Start an API host."""
        return await self.host("api", **changes)

    async def stop(self, host: SessionHost) -> None:
        """End a host in order."""
        self.hosts.remove(host)
        runner = self._runners.pop(host, None)
        if runner is not None:
            await runner.stop()
        await host.close()

    async def kill(self, host: SessionHost) -> None:
        """End a host as a crash would: it writes nothing, gives nothing back, and its lease
        connection breaks. Its objects are cleaned up afterwards, when they can do no more harm."""
        runner = self._runners.pop(host, None)
        if runner is not None and runner._task is not None:
            runner._task.cancel()
        for task in host._tasks:
            task.cancel()

        async def nothing(*_arguments: object) -> None:
            return None

        object.__setattr__(host.registry._services.passes, "ends", nothing)
        connection = host.lease._connection
        assert connection is not None
        host.lease._closed = True
        connection.cut("killed by a test")
        host.writer._closed = True

    async def close(self) -> None:
        """End everything."""
        for host in list(self.hosts):
            await self.stop(host)

    def _new_tenant(self) -> str:
        tenant = Environment.system().ids.next()
        self._sql(
            "INSERT INTO laneway.tenants (id, name, created_at) VALUES (%s, %s, 0)", tenant, tenant
        )
        return tenant

    async def new_tenant(self) -> str:
        """Another tenant."""
        return await asyncio.to_thread(self._new_tenant)

    async def session(self, **new: Any) -> str:
        """A new session."""
        return await self.session_of(self.tenant, **new)

    async def session_of(self, tenant: str, **new: Any) -> str:
        """A new session of another tenant."""
        return (await self.hosts[0].sessions.create(tenant, NewSession(**new))).id

    async def run(self, host: SessionHost, session: str, command: Command) -> Reply:
        """Have a command executed through this host."""
        return await host.execute(self.tenant, session, command, BACKGROUND)

    async def ok(self, host: SessionHost, session: str, command: Command) -> Any:
        """The same for a command that must succeed; its answer as plain JSON."""
        reply = await self.run(host, session, command)
        assert isinstance(reply, Ok), reply
        return json.loads(reply.value)

    async def ok_of(self, tenant: str, host: SessionHost, session: str, command: Command) -> Any:
        """The same for another tenant's session."""
        reply = await host.execute(tenant, session, command, BACKGROUND)
        assert isinstance(reply, Ok), reply
        return json.loads(reply.value)

    async def refused(self, host: SessionHost, session: str, command: Command) -> TaggedError:
        """The same for a command that must be rejected."""
        reply = await self.run(host, session, command)
        assert isinstance(reply, Err), reply
        return reply.error

    async def prompt(self, host: SessionHost, session: str, text: str, lane: str = "main") -> str:
        """Accept a prompt; returns the operation's id."""
        return await self.prompt_of(self.tenant, host, session, text, lane)

    async def prompt_of(
        self, tenant: str, host: SessionHost, session: str, text: str, lane: str = "main"
    ) -> str:
        """The same for another tenant's session."""
        command = Accept(lane=lane, request=PromptRequest(prompt=text))
        reply = await host.execute(tenant, session, command, BACKGROUND)
        assert isinstance(reply, Ok), reply
        return decode(reply.value, OperationAdmission).operation_id

    # What the database says

    def _sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.database.admin_dsn, autocommit=True) as connection:
            cursor = connection.execute(query, parameters)  # pyright: ignore[reportArgumentType]
            return cursor.fetchall() if cursor.description is not None else []

    async def sql(self, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Rows, read or changed by an administrator."""
        return await asyncio.to_thread(self._sql, query, *parameters)

    async def outcome(self, operation_id: str) -> str | None:
        """How the operation ended, None while it is open."""
        rows = await self.sql("SELECT outcome FROM laneway.operations WHERE id = %s", operation_id)
        return rows[0][0] if rows else None

    async def settled(self, *operations: str) -> list[str | None]:
        """Wait until the operations are over."""
        found: dict[str, str | None] = {}

        async def over() -> bool:
            rows = await self.sql(
                "SELECT id::text, outcome FROM laneway.operations WHERE id = ANY(%s::uuid[])",
                list(operations),
            )
            found.update(rows)
            return all(found.get(operation) for operation in operations)

        await eventually(over)
        return [found[operation] for operation in operations]

    async def owner(self, session: str) -> str | None:
        """The id of the host that owns a session."""
        rows = await self.sql(
            "SELECT owner_host::text FROM laneway.sessions WHERE id = %s", session
        )
        return rows[0][0]

    async def texts(self, session: str) -> list[str]:
        """The conversation's messages, in order: their payloads."""
        rows = await self.sql(
            "SELECT payload FROM laneway.entries WHERE session_id = %s ORDER BY seq", session
        )
        return [row[0] for row in rows]


class Screen:
    """What a client would show: replaced by each snapshot, added to by each event."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.snapshots = 0
        self.ended: str | None = None

    def take(self, item: StreamItem) -> None:
        """One item of a stream."""
        if isinstance(item, EndItem):
            self.ended = item.reason
            return
        found = msgspec.json.decode(item.data)
        if isinstance(item, SnapshotItem):
            self.snapshots += 1
            self.entries = [entry["id"] for entry in found["transcript"]]
        elif item.type == "entry_added":
            # A client does not look for duplicates: there must be none.
            self.entries.append(found["entry"]["id"])


@asynccontextmanager
async def watching(
    host: SessionHost, tenant: str, session: str, lane: str | None = "main"
) -> AsyncIterator[Screen]:
    """A client that follows a session through this host."""
    screen = Screen()

    async def follow() -> None:
        async for item in host.watch(tenant, session, lane, BACKGROUND):
            screen.take(item)

    task = asyncio.ensure_future(follow())
    try:
        yield screen
    finally:
        await end_tasks([task])
