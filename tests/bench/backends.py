"""Fresh sessions on each backend, for benchmarks."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import psycopg

from harness.context import BACKGROUND
from harness.environment import Environment
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.session import Session
from harness.storage.jsonl import JsonlStorage
from harness.storage.jsonl_file import create_jsonl
from harness.storage.memory import MemoryStorage
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import Storage
from harness.storage.sqlite import SqliteStorage
from harness.storage.sqlite_create import create_sqlite
from harness.storage.writes import set_value
from storage_pg.connect import open_pool
from storage_pg.embedded import EmbeddedServer
from storage_pg.lease import HostIdentity, HostLease
from storage_pg.sessions import PostgresSessions
from storage_pg.writer import SharedWriter
from tests.postgres import Cluster, Database

NewSession = Callable[[], Awaitable[Session]]
Embedded = Literal["Memory", "JSONL", "SQLite NORMAL", "SQLite FULL"]
EMBEDDED: tuple[Embedded, ...] = ("Memory", "JSONL", "SQLite NORMAL", "SQLite FULL")


@asynccontextmanager
async def embedded(kind: Embedded) -> AsyncGenerator[NewSession]:
    """Sessions of one embedded backend, in a folder that goes away."""
    environment = Environment.system()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        async def new() -> Session:
            metadata = SessionMetadata(id=environment.ids.next(), created_at=0)
            storage = await _storage(kind, folder, metadata, environment)
            await storage.commit(
                (
                    set_value(values.lane_leaf("main"), None),
                    set_value(values.lane_state("main"), IDLE_LANE),
                ),
                BACKGROUND,
            )
            return Session(storage, metadata, environment)

        yield new


async def _storage(
    kind: Embedded, folder: Path, metadata: SessionMetadata, environment: Environment
) -> Storage:
    if kind == "Memory":
        return MemoryStorage(environment.clock)
    if kind == "JSONL":
        path = folder / f"{metadata.id}.jsonl"
        create_jsonl(path, metadata)
        return await JsonlStorage.open(path, environment.clock)
    path = folder / f"{metadata.id}.sqlite"
    create_sqlite(path, metadata)
    synchronous = "full" if kind == "SQLite FULL" else "normal"
    return await SqliteStorage.open(path, environment.clock, synchronous=synchronous)


@asynccontextmanager
async def database() -> AsyncGenerator[Database]:
    """A migrated database on an embedded server with safe settings."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        cluster = Cluster(server.dsn(), "bench")
        await asyncio.to_thread(cluster.prepare)
        yield cluster.new_database()


@asynccontextmanager
async def postgres(place: Database) -> AsyncGenerator[NewSession]:
    """Claimed sessions of one tenant in a database."""
    environment = Environment.system()
    tenant = environment.ids.next()
    with psycopg.connect(place.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO laneway.tenants (id, name, created_at) VALUES (%s, %s, 0)",
            (tenant, tenant),
        )
    async with open_pool(place.app_dsn) as pool:
        writer = SharedWriter(place.app_dsn)
        lease = HostLease(place.app_dsn, HostIdentity("bench", "worker"), environment.ids)
        await lease.start()
        sessions = PostgresSessions(pool, writer, environment, lease=lease)

        async def new() -> Session:
            made = await sessions.create(tenant)
            return (await sessions.open(tenant, made.id)).session(environment)

        yield new
        await lease.close()
        await writer.close()
