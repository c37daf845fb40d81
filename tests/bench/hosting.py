"""What hosting costs: from acceptance to the first model request, lateness of wakes, time to fail over.

Latency and lateness are measured with the hosts in this process, failover with real processes.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.models.scripted import ScriptedProvider
from harness.operation.events import RetryScheduled
from tests.bench.backends import database
from tests.bench.measure import Measure
from tests.fleet.processes import FleetOfProcesses
from tests.postgres import Database
from tests.workers.kit import Fleet, eventually

PROMPTS = 200
WAITS = 300
KILLS = 10
_SHORTEST_MS, _LONGEST_MS = 50, 5_000


def _at(sorted_values: Sequence[float], share: float) -> float:
    return sorted_values[min(int(share * len(sorted_values)), len(sorted_values) - 1)]


def _measures(name: str, milliseconds: list[float], bar: float | None) -> list[Measure]:
    ordered = sorted(milliseconds)
    return [
        Measure(f"{name}, median", _at(ordered, 0.5), "ms"),
        Measure(f"{name}, p99", _at(ordered, 0.99), "ms", bar, at_most=True),
    ]


class Requests:
    """When the scripted models of this process were asked."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[float]] = {}
        answer = ScriptedProvider._answer

        waiting_for = self._waiting

        def asked(self: ScriptedProvider, request: Any) -> Any:
            waiting = waiting_for.pop(request.options.session_id, None)
            if waiting is not None:
                waiting.set_result(time.perf_counter())
            return answer(self, request)

        ScriptedProvider._answer = asked

    def next(self, session: str) -> asyncio.Future[float]:
        """The instant of the session's next request."""
        future = self._waiting[session] = asyncio.get_running_loop().create_future()
        return future


async def first_requests(db: Database) -> list[Measure]:
    """A prompt accepted by an API host; a worker's first request for it."""
    fleet = Fleet(db)
    api = await fleet.api()
    await fleet.worker()
    requests = Requests()
    taken: list[float] = []
    for _ in range(PROMPTS):
        session = await fleet.session()
        asked = requests.next(session)
        begun = time.perf_counter()
        operation = await fleet.prompt(api, session, "echo: hello")
        taken.append((await asked - begun) * 1000)
        await fleet.settled(operation)
    await fleet.close()
    return _measures("accepted to first request", taken, None)


async def wakes(db: Database, hold_due_ms: int, name: str) -> list[Measure]:
    """Operations that wait between 50 ms and 5 s for a retry; how late it begins."""
    fleet = Fleet(db)
    worker = await fleet.worker(
        hold_due_ms=hold_due_ms,
        retry_max=1,
        retry_base_ms=10,
        max_drives=WAITS,
        tenant_drives=WAITS,
    )
    requests = Requests()
    late: list[float] = []
    attach = worker.registry._attach

    async def attaching(owned: Any) -> Any:
        live = await attach(owned)

        async def scheduled(event: RetryScheduled, _context: object) -> None:
            due = time.perf_counter() + event.delay_ms / 1000
            asked = requests.next(live.session_id)
            asked.add_done_callback(lambda done: late.append((done.result() - due) * 1000))

        live.harness.events.on(RetryScheduled, scheduled)
        return live

    worker.registry._attach = attaching
    sessions = [await fleet.session() for _ in range(WAITS)]
    waits = random.Random(1)
    operations = [
        await fleet.prompt(worker, session, _failing(waits.randint(_SHORTEST_MS, _LONGEST_MS)))
        for session in sessions
    ]
    await fleet.settled(*operations)
    await fleet.close()
    assert len(late) == WAITS
    return _measures(name, late, 100.0)


def _failing(wait_ms: int) -> str:
    return "fail: " + json.dumps(
        {"message": "overloaded", "kind": "retryable", "retryAfterMs": wait_ms}
    )


async def failover(db: Database) -> list[Measure]:
    """SIGKILL of a worker in the middle of a tool; another worker's next run of that tool."""
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        processes = FleetOfProcesses(db, Path(name))
        fleet = Fleet(db)
        try:
            client = await fleet.api(
                cluster_secret=processes._environment["LANEWAY_CLUSTER_SECRET"],
                tools="tests.fleet.tools:registry",
            )
            for number in range(KILLS):
                await processes.have("worker", 2)
                session, tag = await fleet.session(), f"kill{number}"
                arguments = {"seconds": 30, "tag": tag}
                prompt = "tool: " + json.dumps({"name": "slow_safe", "arguments": arguments})
                await fleet.prompt(client, session, prompt)
                await eventually(lambda tag=tag: bool(processes.notes(tag, "start")))
                owner = await fleet.owner(session)
                (victim,) = [p for p in processes.of("worker") if p.said["hostId"] == owner]
                begun = time.perf_counter()
                await victim.kill()
                await eventually(lambda tag=tag: len(processes.notes(tag, "start")) > 1)
                taken.append((time.perf_counter() - begun) * 1000)
        finally:
            await processes.stop()
            await fleet.close()
    return _measures("SIGKILL to the next host's work", taken, 2_000.0)


async def run() -> list[dict[str, object]]:
    """All of them, each on a database of its own."""
    rows: list[Measure] = []
    async with database() as db:
        rows += await first_requests(db)
    async with database() as db:
        rows += await wakes(db, 5_000, "lateness of a retry, by the owner")
    async with database() as db:
        rows += await wakes(db, 0, "lateness of a retry, by the dispatcher")
    async with database() as db:
        rows += await failover(db)
    return [row.as_json() for row in rows]
