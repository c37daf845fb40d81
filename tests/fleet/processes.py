"""Starts and ends the processes of a fleet by hand: every kill in these tests is on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, LiteralString

import psycopg

from app.scopes import SCOPES
from harness.environment import Environment
from storage_pg.catalog import Catalog, open_engine
from tests.fleet.nursery import Born, start
from tests.fleet.tools import JOURNAL
from tests.postgres import Database

Role = Literal["api", "worker"]
START_SECONDS = 400.0


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return when it holds. What it asks about happens in other processes, so it has to be asked."""
    while not await condition():  # noqa: ASYNC110 -- no event of this process says it
        await asyncio.sleep(0.01)


class NotStarted(AssertionError):
    """A process ended before it was ready; the message ends with what it wrote to its log."""


class FleetProcess:
    """One API or worker process."""

    def __init__(self, role: Role, process: Born, said: dict[str, Any]) -> None:
        self.role: Role = role
        self.process = process
        self.said = said

    @property
    def url(self) -> str:
        """The public address of an API process."""
        return str(self.said["url"])

    @property
    def alive(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken it."""
        self.signal(signal.SIGKILL)
        await self.process.wait()

    async def ended(self, seconds: float = 60.0) -> int:
        """Its exit status once it has ended."""
        return await asyncio.wait_for(self.process.wait(), seconds)


class FleetOfProcesses:
    """The processes on one database. Their output goes to a log file per process."""

    def __init__(self, database: Database, folder: Path, **settings: str) -> None:
        self._admin_dsn = database.admin_dsn
        self.folder = folder
        self.journal = folder / "journal"
        self.journal.touch()
        self.processes: list[FleetProcess] = []
        self._spawned: list[Born] = []
        self._count = 0
        self._environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("LANEWAY_")},
            "LANEWAY_DATABASE_URL": database.app_dsn,
            "LANEWAY_DIRECT_DATABASE_URL": database.direct_dsn,
            "LANEWAY_OWNER_DATABASE_URL": database.owner_dsn,
            "LANEWAY_CLUSTER_SECRET": secrets.token_hex(16),
            "LANEWAY_PORT": "0",
            "LANEWAY_POOL_SIZE": "4",
            "LANEWAY_MODELS": json.dumps(
                [
                    {
                        "provider": "scripted",
                        "modelId": "prompted",
                        "scripted": {"deltaDelay": 0.02},
                    }
                ]
            ),
            "LANEWAY_TOOLS": "tests.fleet.tools:registry",
            "LANEWAY_RETRY_BASE_MS": "50",
            JOURNAL: str(self.journal),
            **settings,
        }

    async def start(self, role: Role) -> FleetProcess:
        """Start a process and wait until it says that it is ready."""
        self._count += 1
        number = self._count
        process = await start([role, "--json"], self._environment, self._log_file(number, role))
        self._spawned.append(process)
        line = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        if not line:
            await process.wait()
            log = self._log_file(number, role).read_text(errors="replace")
            raise NotStarted(f"{role} did not start:\n{log[-4_000:]}")
        started = FleetProcess(role, process, json.loads(line))
        self.processes.append(started)
        return started

    def _log_file(self, number: int, role: Role) -> Path:
        return self.folder / f"{number}-{role}.log"

    def logs(self) -> list[str]:
        """What every process wrote to its log, dead ones included."""
        return [file.read_text(errors="replace") for file in sorted(self.folder.glob("*.log"))]

    async def have(self, role: Role, count: int) -> None:
        """Start processes until so many of a role live."""
        missing = count - len(self.of(role))
        await asyncio.gather(*(self.start(role) for _ in range(missing)))

    def of(self, role: Role) -> list[FleetProcess]:
        """The living processes of a role."""
        return [process for process in self.processes if process.role == role and process.alive]

    async def stop(self) -> None:
        """End everything that was started here."""
        # Also those that never said that they were ready.
        for process in self._spawned:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    # What the database and the tools say

    async def tenant(self) -> str:
        """The API key of a new tenant."""
        environment = Environment.system()
        engine = open_engine(self._environment["LANEWAY_DATABASE_URL"], size=1)
        try:
            catalog = Catalog(engine, environment.clock, environment.ids)
            made = await catalog.create_tenant(environment.ids.next())
            return (await catalog.create_key(made.id, "test", SCOPES)).plain
        finally:
            await engine.dispose()

    def rows(self, query: LiteralString, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows as a superuser sees them, whom row security does not hold back."""
        with psycopg.connect(self._admin_dsn, autocommit=True) as connection:
            # With no parameters a percent sign stands for itself.
            return connection.execute(query, parameters or None).fetchall()

    def notes(self, tag: str, kind: str) -> list[str]:
        """The invocation ids that tools noted under a tag, in order."""
        return self.all_notes(kind).get(tag, [])

    def all_notes(self, kind: str) -> dict[str, list[str]]:
        """The same for every tag."""
        found: dict[str, list[str]] = {}
        for line in self.journal.read_text().splitlines():
            what, tag, invocation, *_ = line.split()
            if what == kind:
                found.setdefault(tag, []).append(invocation)
        return found
