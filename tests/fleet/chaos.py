"""A fleet behind a pooler, under load and in trouble: for the suite and for the benchmark."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from storage_pg.embedded import EmbeddedServer
from tests.fleet.model_server import ModelServer
from tests.fleet.processes import FleetOfProcesses
from tests.fleet.trouble import Kind, Trouble, Troubles
from tests.fleet.user import User, tool_prompt
from tests.fleet.watchman import Watchman
from tests.pooler import Pooler, PoolerSettings
from tests.pooler_package import NoPooler, pooler_program
from tests.postgres import Cluster, Database

SteerFate = Literal["accepted", "refused"]


@dataclass(slots=True)
class Plan:
    """How much goes on: lanes are spread over the sessions, and sessions over the tenants.

    `idle` is how many seconds a lane rests between two operations, drawn from the range.
    """

    troubles: Troubles
    tenants: int = 3
    sessions: int = 8
    lanes: int = 24
    workers: int = 3
    apis: int = 2
    idle: tuple[float, float] = (0.0, 1.0)
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """An accepted operation: where, and what it does (`echo`, or a tool's name)."""

    session: str
    lane: str
    kind: str


@dataclass(slots=True)
class Ledger:
    """What was asked for and what came of it. `failures` are the codes of the errors with which
    operations failed; `steers` have the operation that they were meant for and their fate, by text."""

    accepted: dict[str, Asked] = field(default_factory=dict[str, Asked])
    receipts: dict[str, str] = field(default_factory=dict[str, str])
    steers: dict[str, tuple[str, SteerFate]] = field(
        default_factory=dict[str, tuple[str, SteerFate]]
    )
    owners: dict[str, User] = field(default_factory=dict[str, User])
    happened: Counter[str] = field(default_factory=Counter[str])
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def outcomes(self) -> Counter[str]:
        """How many operations ended in which way."""
        return Counter(self.receipts.values())


@dataclass(slots=True)
class Stage:
    """What a play needs: all of it is its own, so that all of it can be troubled."""

    database: Database
    server: EmbeddedServer
    pooler: Pooler | None
    model: ModelServer
    fleet: FleetOfProcesses
    end: AsyncExitStack

    def urls(self) -> list[str]:
        """Where the living API processes are, the newest last."""
        return [api.url for api in self.fleet.of("api")]

    async def user(self, key: str | None = None) -> User:
        """A client of a new tenant, or the one whose key this is."""
        made = User(key or await self.fleet.tenant(), self.urls)
        self.end.push_async_callback(made.close)
        return made


@asynccontextmanager
async def stage(folder: Path, **settings: str) -> AsyncIterator[Stage]:
    """A database server, a pooler where one is to be had, a model server, and no process yet."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(folder / "postgres"))
        cluster = Cluster(server.dsn(), "chaos")
        await asyncio.to_thread(cluster.prepare)
        database = await asyncio.to_thread(cluster.new_database)
        pooler: Pooler | None = None
        with contextlib.suppress(NoPooler):
            program = await asyncio.to_thread(pooler_program)
            pooler = Pooler(program, folder / "pooler", server.dsn(), PoolerSettings(size=12))
            await asyncio.to_thread(pooler.start)
            stack.callback(pooler.stop)
        model = await stack.enter_async_context(ModelServer(pause=0.02).running())
        fleet = FleetOfProcesses(
            database if pooler is None else pooler.through(database),
            folder,
            **{
                "LANEWAY_MODELS": model.configuration(),
                "LANEWAY_SILENT_SECONDS": "3",
                "LANEWAY_HEARTBEAT_SECONDS": "0.5",
                "LANEWAY_DRAIN_SECONDS": "2",
                **settings,
            },
        )
        stack.push_async_callback(fleet.stop)
        yield Stage(database, server, pooler, model, fleet, stack)


def everything(place: Stage) -> tuple[Kind, ...]:
    """Every kind of trouble but plain deaths, so that none is left to chance."""
    pooler: tuple[Kind, ...] = () if place.pooler is None else ("pooler",)
    return ("stop", "shutdown", "term", *pooler, "cut", "power cut")


async def play(place: Stage, plan: Plan) -> tuple[Ledger, Watchman]:
    """Keep lanes busy while the fleet is troubled; then wait until everything accepted is over."""
    fleet, rng = place.fleet, random.Random(plan.seed)
    await asyncio.gather(fleet.have("api", plan.apis), fleet.have("worker", plan.workers))
    ledger = Ledger()
    users = [await place.user() for _ in range(plan.tenants)]
    lanes = await _lanes(users, plan, ledger)
    trouble = Trouble(
        fleet,
        {"api": plan.apis, "worker": plan.workers},
        rng,
        server=place.server,
        pooler=place.pooler,
    )
    over = asyncio.Event()
    watchman = Watchman(place.database, trouble.somebody_drives)
    async with watchman.looking(), asyncio.TaskGroup() as busy:
        for session, lane in lanes:
            worker = _Busy(ledger, session, lane, random.Random(rng.random()), plan)
            busy.create_task(worker.work(over))
        try:
            await trouble.make(plan.troubles)
        finally:
            over.set()
    ledger.happened = trouble.happened
    return ledger, watchman


async def _lanes(users: list[User], plan: Plan, ledger: Ledger) -> list[tuple[str, str]]:
    """All lanes; the first of each session is the one that it has from the beginning."""
    found: list[tuple[str, str]] = []
    for number in range(plan.sessions):
        user = users[number % len(users)]
        session = await user.session()
        ledger.owners[session] = user
        found.append((session, "main"))
        for extra in range(number, plan.lanes - plan.sessions, plan.sessions):
            await user.lane(session, f"lane-{extra}")
            found.append((session, f"lane-{extra}"))
    return found


@dataclass(slots=True)
class _Busy:
    """One lane's user: an operation after the other, and a word in between now and then."""

    ledger: Ledger
    session: str
    lane: str
    rng: random.Random
    plan: Plan

    async def work(self, over: asyncio.Event) -> None:
        user = self.ledger.owners[self.session]
        while not over.is_set():
            operation = user.new_id()
            kind = self.rng.choice(["echo", "slow_never", "slow_safe"])
            if await user.submit(self.session, self._prompt(kind, operation), operation, self.lane):
                self.ledger.accepted[operation] = Asked(self.session, self.lane, kind)
                if self.rng.random() < 0.4:
                    await asyncio.sleep(self.rng.uniform(0.0, 0.5))
                    await self._steer(user, operation)
                receipt = await user.receipt(operation)
                self.ledger.receipts[operation] = receipt["outcome"]
                if receipt["outcome"] == "failed":
                    self.ledger.failures[operation] = receipt["error"]["code"]
            await asyncio.sleep(self.rng.uniform(*self.plan.idle))

    def _prompt(self, kind: str, operation: str) -> str:
        if kind == "echo":
            words = (f"word{number}" for number in range(self.rng.randint(5, 40)))
            return f"echo: {operation} {' '.join(words)}"
        return tool_prompt(kind, self.rng.uniform(0.05, 0.5), operation)

    async def _steer(self, user: User, operation: str) -> None:
        text = f"steer {user.new_id()}"
        status, code = await user.steer(self.session, self.lane, text)
        assert status == 202 or (status, code) == (409, "NoActiveRun"), (status, code)
        self.ledger.steers[text] = (operation, "accepted" if status == 202 else "refused")
