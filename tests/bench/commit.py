"""How fast sessions commit, as a share of what the same server and driver do with single-row inserts.

A settlement commit is what a finished model response writes: one entry, one ledger row, two values,
one deleted list; with them come the totals and the branch index. Baseline and commits take turns in
short rounds, and each counts by its fastest round: what else the machine does only ever slows them.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg

from harness.context import BACKGROUND
from harness.entries import NewEntry
from harness.environment import Environment
from harness.storage.address import list_of, value
from harness.storage.writes import Write, delete_list, insert_entry, insert_usage, set_value
from harness.testing.conformance.samples import Samples
from harness.usage import NewUsageRow, Usage, UsageCost
from storage_pg.connect import open_pool
from storage_pg.embedded import EmbeddedServer
from storage_pg.lease import HostIdentity, HostLease
from storage_pg.sessions import PostgresSessions
from storage_pg.storage import PostgresStorage
from storage_pg.writer import SharedWriter
from tests.postgres import Cluster, Database

BARS = {1: 0.6, 8: 0.45, 32: 0.6}
ROUNDS = 16
SECONDS = 0.25

Result = dict[str, object]


async def run() -> list[Result]:
    """The share at 1, 8 and 32 sessions, and the times behind it."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServer(Path(folder)) as server:
        cluster = Cluster(server.dsn(), "bench")
        await asyncio.to_thread(cluster.prepare)
        database = cluster.new_database()
        results: list[Result] = []
        for count, bar in BARS.items():
            results += await _compare(database, count, bar)
        return results


async def _compare(database: Database, count: int, bar: float) -> list[Result]:
    environment = Environment.system()
    tenant = environment.ids.next()
    with psycopg.connect(database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO laneway.tenants (id, name, created_at) VALUES (%s, %s, 0)",
            (tenant, tenant),
        )
        owner.execute(
            "CREATE TABLE IF NOT EXISTS laneway.bench "
            "(id uuid PRIMARY KEY, session_id uuid, seq bigint, payload text)"
        )
        owner.execute("GRANT INSERT ON laneway.bench TO laneway_app")
    async with open_pool(database.app_dsn) as pool:
        writer = SharedWriter(database.app_dsn)
        lease = HostLease(database.app_dsn, HostIdentity("bench", "worker"), environment.ids)
        await lease.start()
        sessions = PostgresSessions(pool, writer, environment, lease=lease)
        storages: list[PostgresStorage] = []
        for _ in range(count):
            made = await sessions.create(tenant)
            storages.append((await sessions.open(tenant, made.id)).storage)
        # As the driver comes: it prepares the insert by itself after a few calls.
        connections = [
            await psycopg.AsyncConnection.connect(database.app_dsn, autocommit=True)
            for _ in range(count)
        ]
        workloads = [_Settlements(environment, storage) for storage in storages]
        payload = "x" * 1_000

        async def insert(index: int) -> None:
            await connections[index].execute(
                "INSERT INTO laneway.bench VALUES (%s, %s, %s, %s)",
                (uuid.UUID(environment.ids.next()), uuid.UUID(tenant), 1, payload),
            )

        async def settle(index: int) -> None:
            await workloads[index].commit()

        await _rate(count, insert, 0.2)
        await _rate(count, settle, 0.2)
        rounds = [
            (await _rate(count, insert, SECONDS), await _rate(count, settle, SECONDS))
            for _ in range(ROUNDS)
        ]
        for connection in connections:
            await connection.close()
        for storage in storages:
            await storage.close(BACKGROUND)
        await lease.close()
        await writer.close()
    inserts = max(rate for rate, _ in rounds)
    commits = max(rate for _, rate in rounds)
    where = f"{count} session{'s' if count > 1 else ''}"
    return [
        _result(
            f"settlement commit against single-row insert, {where}", commits / inserts, "ratio", bar
        ),
        _result(f"settlement commits per second, {where}", commits, "1/s", None),
        _result(f"single-row inserts per second, {where}", inserts, "1/s", None),
    ]


async def _rate(count: int, work: Callable[[int], Awaitable[None]], seconds: float) -> float:
    done = 0
    end = time.perf_counter() + seconds

    async def loop(index: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await work(index)
            done += 1

    started = time.perf_counter()
    await asyncio.gather(*(loop(index) for index in range(count)))
    return done / (time.perf_counter() - started)


class _Settlements:
    """The commits of one session, each entry under the one before."""

    def __init__(self, environment: Environment, storage: PostgresStorage) -> None:
        self._ids = environment.ids
        self._storage = storage
        self._payload = Samples().assistant("word " * 160)
        self._leaf: str | None = None

    async def commit(self) -> None:
        entry, operation = self._ids.next(), self._ids.next()
        writes: list[Write] = [
            insert_entry(NewEntry(id=entry, parent_id=self._leaf, payload=self._payload)),
            insert_usage(NewUsageRow(id=self._ids.next(), entry_id=entry, usage=_USAGE)),
            set_value(value(dict[str, Any], "bench.state"), {"text": "s" * 600}),
            set_value(value(str, "bench.leaf"), entry),
            delete_list(list_of(Any, "bench.frames", operation)),
        ]
        await self._storage.commit(writes, BACKGROUND)
        self._leaf = entry


_USAGE = Usage(input=1200, output=80, total_tokens=1280, cost=UsageCost(total=0.01))


def _result(name: str, amount: float, unit: str, bar: float | None) -> Result:
    return {
        "name": name,
        "value": round(amount, 3),
        "unit": unit,
        "bar": bar,
        "ok": bar is None or amount >= bar,
    }


if __name__ == "__main__":
    for line in asyncio.run(run()):
        print(line)
