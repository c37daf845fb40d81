"""Looks on while the fleet is troubled: does what must hold at every moment hold (design §6)?

It has a connection of its own past the pooler and sees what a superuser sees. A picture of a database in
motion may show a thing half done, so a fault counts when it is still there a while later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from typing import Any, LiteralString, cast

import psycopg

from harness.environment import Environment
from harness.errors import StorageError
from harness.storage.queries import load_queries
from storage_pg.connect import connect, open_pool
from storage_pg.due import PollSettings
from storage_pg.locks import session_lock
from storage_pg.open_operations import sweep
from tests.postgres import Database

# How long a due operation may be without a live owner while somebody is there to drive it: the longest
# silence of a host, a second dispatch, and what a busy machine adds.
LEFT_ALONE_SECONDS = 30.0
_SETTLED_SECONDS = 3.0
_LOOK_SECONDS = 0.1
_SWEEP_SECONDS = 3.0

# Psycopg takes only literals so that nobody assembles SQL: these are the file's.
QUERIES = cast("dict[str, LiteralString]", load_queries("tests.fleet", "watchman.sql"))


class Watchman:
    """`broken` says what did not hold. `somebody_drives` tells whether a worker is there that could."""

    def __init__(self, database: Database, somebody_drives: Callable[[], bool]) -> None:
        self._dsn = database.admin_dsn
        self._direct = database.direct_dsn
        self._somebody_drives = somebody_drives
        self._alone: dict[Hashable, float] = {}
        self._astray: dict[Hashable, float] = {}
        self._owners: dict[tuple[str, int], str] = {}
        self._fences: dict[str, int] = {}
        self.looks = 0
        self.longest_alone = 0.0
        self.broken: list[str] = []

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[Watchman]:
        """Look while the block runs."""
        tasks = [asyncio.ensure_future(part) for part in (self._look(), self._sweep())]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, Exception):
                    raise result

    async def _look(self) -> None:
        last = time.monotonic()
        while True:
            with contextlib.suppress(psycopg.Error, OSError):
                async with await connect(self._dsn, "watchman") as connection:
                    # While the database was away nobody could do anything.
                    last = time.monotonic()
                    while True:
                        alone = await _rows(connection, "alone")
                        owned = await _rows(connection, "owned")
                        held = await _rows(connection, "held")
                        now = time.monotonic()
                        passed = now - last if self._somebody_drives() else 0.0
                        last = now
                        self._judge_alone((row[0] for row in alone), passed)
                        self._judge_owners(owned, {(row[1], row[0]) for row in held}, passed)
                        self.looks += 1
                        await asyncio.sleep(_LOOK_SECONDS)
            await asyncio.sleep(_LOOK_SECONDS)

    def _judge_alone(self, operations: Iterable[str], passed: float) -> None:
        for operation, seconds in _still(self._alone, operations, passed):
            self.longest_alone = max(self.longest_alone, seconds)
            if seconds > LEFT_ALONE_SECONDS:
                self.broken.append(f"operation {operation} was due and alone for {seconds:.1f} s")

    def _judge_owners(
        self, owned: list[tuple[Any, ...]], held: set[tuple[int, int]], passed: float
    ) -> None:
        astray: list[Hashable] = []
        for session, tenant, fence, host, backend in owned:
            if self._fences.get(session, 0) > fence:
                self.broken.append(f"the fence of session {session} went back to {fence}")
            self._fences[session] = fence
            before = self._owners.setdefault((session, fence), host)
            if before != host:
                self.broken.append(f"session {session} had two owners under fence {fence}")
            if backend is not None and (session_lock(tenant, session), backend) not in held:
                astray.append((session, fence, host))
        for what, seconds in _still(self._astray, astray, passed):
            if seconds > _SETTLED_SECONDS:
                self.broken.append(f"{what}: the live host on record does not hold the session")

    async def _sweep(self) -> None:
        environment = Environment.system()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            with contextlib.suppress(StorageError):  # the database is away
                await self.sweep_once(environment)

    async def sweep_once(self, environment: Environment) -> None:
        """Compare the scheduler's rows with the operations' states, as workers do each minute."""
        async with open_pool(self._direct, size=1, application="watchman") as pool:
            async for repair in sweep(pool, environment.clock.now_ms, PollSettings()):
                self.broken.append(f"the sweep found {repair}")


def _still(
    known: dict[Hashable, float], seen: Iterable[Hashable], passed: float
) -> list[tuple[Hashable, float]]:
    """What was seen before and is seen again, and for how long by now."""
    again = {what: known[what] + passed if what in known else 0.0 for what in seen}
    known.clear()
    known.update(again)
    return list(again.items())


async def _rows(connection: psycopg.AsyncConnection[Any], query: str) -> list[tuple[Any, ...]]:
    return await (await connection.execute(QUERIES[query])).fetchall()
