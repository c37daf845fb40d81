"""What hosting costs: from acceptance to the first model request, and the time to fail over.

Latency is measured with the hosts in this process, failover with real processes.
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

from tests.bench.backends import database
from tests.bench.measure import Measure, share_of
from tests.bench.requests import Requests
from tests.fleet.processes import FleetOfProcesses
from tests.postgres import Database
from tests.workers.kit import Fleet, eventually

PROMPTS = 200
KILLS = 30


def _measures(name: str, milliseconds: list[float], bar: float | None) -> list[Measure]:
    ordered = sorted(milliseconds)
    return [
        Measure(f"{name}, median", share_of(ordered, 0.5), "ms"),
        Measure(f"{name}, p99", share_of(ordered, 0.99), "ms", bar, at_most=True),
    ]


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
    requests.close()
    return _measures("accepted to first request", taken, None)


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
        rows += await failover(db)
    return [row.as_json() for row in rows]
