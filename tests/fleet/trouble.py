"""Everything bad that happens to a fleet: deaths, standstills, deploys, cut leases, a database that restarts."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Literal

import psycopg

from storage_pg.embedded import EmbeddedServer
from tests.fleet.processes import FleetOfProcesses, FleetProcess, NotStarted, Role
from tests.fleet.watchman import QUERIES
from tests.pooler import Pooler

Kind = Literal["kill", "stop", "term", "cut", "shutdown", "power cut", "pooler"]


@dataclass(frozen=True, slots=True)
class Troubles:
    """What happens, until `seconds` have passed and `kills` processes were killed.

    Between two troubles lie `pause` seconds, drawn from the range; `weights` says how often each of
    those that happen at random does. `once` happens once each, spread over the time. A process stands
    still for `standstill` seconds, drawn from the range.
    """

    seconds: float
    kills: int
    pause: tuple[float, float] = (0.1, 0.6)
    weights: dict[Kind, int] = field(
        default_factory=lambda: {"kill": 12, "stop": 2, "term": 2, "cut": 2}
    )
    once: tuple[Kind, ...] = ()
    standstill: tuple[float, float] = (0.2, 5.0)


class Trouble:
    """Troubles a fleet that has `workers` and `apis`; every process that goes is replaced."""

    def __init__(
        self,
        fleet: FleetOfProcesses,
        planned: dict[Role, int],
        rng: random.Random,
        *,
        server: EmbeddedServer | None = None,
        pooler: Pooler | None = None,
    ) -> None:
        self._fleet = fleet
        self._planned = planned
        self._rng = rng
        self._server = server
        self._pooler = pooler
        self._starting: set[asyncio.Task[FleetProcess]] = set()
        self._standing: dict[FleetProcess, asyncio.Task[None]] = {}
        self._leaving: set[FleetProcess] = set()
        self._away = False
        self._outages = 0
        self.happened: Counter[str] = Counter()

    async def make(self, troubles: Troubles) -> None:
        """Trouble it; at the end everybody stands up again and the fleet is whole."""
        begun = time.monotonic()
        once = list(troubles.once)
        kinds, weights = zip(*troubles.weights.items(), strict=True)
        try:
            while (
                time.monotonic() - begun < troubles.seconds
                or self.happened["kill"] < troubles.kills
                or once
            ):
                await asyncio.sleep(self._rng.uniform(*troubles.pause))
                share = (time.monotonic() - begun) / troubles.seconds if troubles.seconds else 1.0
                due = (len(troubles.once) - len(once) + 1) / (len(troubles.once) + 1)
                in_turn = bool(once) and share >= due
                kind = once[0] if in_turn else self._rng.choices(kinds, weights)[0]
                if await self._do(kind, troubles) and in_turn:
                    once.pop(0)
        finally:
            for process in list(self._standing):
                self._stand_up(process)
            for task in self._starting:
                await task

    def somebody_drives(self) -> bool:
        """Whether a worker is there that could drive, and a database to drive on."""
        return not self._away and any(
            worker not in self._standing and worker not in self._leaving
            for worker in self._fleet.of("worker")
        )

    async def _do(self, kind: Kind, troubles: Troubles) -> bool:
        deeds: dict[Kind, Callable[[], Coroutine[Any, Any, bool]]] = {
            "kill": self._kill,
            "stop": lambda: self._stop(self._rng.uniform(*troubles.standstill)),
            "term": self._term,
            "cut": self._cut,
            "shutdown": lambda: self._restart(by_power_cut=False),
            "power cut": lambda: self._restart(by_power_cut=True),
            "pooler": self._restart_pooler,
        }
        happened = await deeds[kind]()
        self.happened[kind] += happened
        return happened

    # One trouble each; False when nobody was there for it

    async def _kill(self) -> bool:
        role = self._role()
        await self._whole(role)
        victim = self._rng.choice(self._fleet.of(role))
        await victim.kill()
        self._forget(victim)
        self._replace(role)
        return True

    async def _stop(self, seconds: float) -> bool:
        role = self._role()
        able = self._able(role)
        if len(able) < 2:
            return False
        victim = self._rng.choice(able)
        victim.signal(signal.SIGSTOP)

        async def later() -> None:
            await asyncio.sleep(seconds)
            self._stand_up(victim)

        self._standing[victim] = asyncio.ensure_future(later())
        return True

    async def _term(self) -> bool:
        role = self._role()
        await self._whole(role)
        able = self._able(role)
        if len(able) < 2:
            return False
        victim = self._rng.choice(able)
        victim.signal(signal.SIGTERM)
        self._leaving.add(victim)
        self._replace(role)
        return True

    async def _cut(self) -> bool:
        with contextlib.suppress(psycopg.Error):
            backends = await asyncio.to_thread(self._fleet.rows, QUERIES["lease_backends"])
            if backends:
                (backend,) = self._rng.choice(backends)
                await asyncio.to_thread(self._fleet.rows, QUERIES["cut"], backend)
                return True
        return False

    async def _restart(self, *, by_power_cut: bool) -> bool:
        assert self._server is not None
        self._away = True
        self._outages += 1
        await asyncio.to_thread(self._server.kill if by_power_cut else self._server.stop)
        await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        await asyncio.to_thread(self._server.start)
        self._away = False
        return True

    async def _restart_pooler(self) -> bool:
        assert self._pooler is not None
        self._outages += 1
        await asyncio.to_thread(self._pooler.stop)
        await asyncio.to_thread(self._pooler.start)
        return True

    # Who is there

    def _role(self) -> Role:
        # Workers do the work, so they suffer more often than the front.
        return "worker" if self._rng.random() < 0.75 else "api"

    def _able(self, role: Role) -> list[FleetProcess]:
        """Those that neither stand still nor leave."""
        return [
            process
            for process in self._fleet.of(role)
            if process not in self._standing and process not in self._leaving
        ]

    async def _whole(self, role: Role) -> None:
        """A role is whole again before it is hit again: on a slow machine processes start slowly."""
        while self._present(role) < self._planned[role] and self._starting:
            done, self._starting = await asyncio.wait(
                self._starting, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()

    def _present(self, role: Role) -> int:
        return sum(process not in self._leaving for process in self._fleet.of(role))

    def _replace(self, role: Role) -> None:
        self._starting.add(asyncio.create_task(self._start(role)))

    async def _start(self, role: Role) -> FleetProcess:
        """Start one, as a supervisor would: again when there was no database to start on."""
        while True:
            outages, away = self._outages, self._away
            try:
                return await self._fleet.start(role)
            except NotStarted:
                if not away and outages == self._outages:
                    raise

    def _stand_up(self, process: FleetProcess) -> None:
        standing = self._standing.pop(process, None)
        process.signal(signal.SIGCONT)
        if standing is not None and standing is not asyncio.current_task():
            standing.cancel()

    def _forget(self, process: FleetProcess) -> None:
        self._leaving.discard(process)
        standing = self._standing.pop(process, None)
        if standing is not None:
            standing.cancel()
