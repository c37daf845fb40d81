"""What hosting costs: from acceptance to the first model request, what the queue adds, the time to fail over.

Latency between hosts is measured with them in this process; from a POST, and to fail over, with real
processes.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path

from tests.bench.backends import database
from tests.bench.measure import Measure, share_of
from tests.bench.requests import Requests
from tests.fleet.model_server import ModelServer
from tests.fleet.processes import FleetOfProcesses
from tests.fleet.user import User
from tests.postgres import Database
from tests.workers.kit import Fleet, eventually

PROMPTS = 200
WARM_UP = 10
KILLS = 30


def _measures(name: str, milliseconds: list[float], bar: float | None) -> list[Measure]:
    ordered = sorted(milliseconds)
    return [
        Measure(f"{name}, median", share_of(ordered, 0.5), "ms"),
        Measure(f"{name}, p99", share_of(ordered, 0.99), "ms", bar, at_most=True),
    ]


async def first_requests(db: Database, name: str, *, queued: bool) -> list[Measure]:
    """A prompt that comes to an API host; a worker's first request for it, and what all of the run takes
    of the database. `queued`: no worker takes it, so that it is dispatched by a job."""
    fleet = Fleet(db)
    api = await fleet.api()
    if queued:
        api._router._placement = None
    worker = await fleet.worker()
    if queued:
        # What a worker finds by itself it drives without a job.
        worker.dispatcher._here = lambda: 0
    requests = Requests()
    taken: list[float] = []
    before = await _commits(fleet)
    for _ in range(PROMPTS):
        session = await fleet.session()
        asked = requests.next(session)
        begun = time.perf_counter()
        operation = await fleet.prompt(api, session, "echo: hello")
        taken.append((await asked - begun) * 1000)
        await fleet.settled(operation)
    commits = (await _commits(fleet) - before) / PROMPTS
    await fleet.close()
    requests.close()
    return [
        *_measures(f"to the first model request, {name}", taken, None),
        Measure(f"transactions per run, {name}", commits, "transactions"),
    ]


async def _commits(fleet: Fleet) -> int:
    # The server's counters follow within a second.
    await asyncio.sleep(1.5)
    rows = await fleet.sql(
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
    )
    return int(rows[0][0])


async def posted(db: Database) -> list[Measure]:
    """A POST over HTTP; when the model's server, over HTTP too, has the request."""
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        async with ModelServer(pause=0.0).running() as model:
            fleet = FleetOfProcesses(db, Path(name), LANEWAY_MODELS=model.configuration())
            user = User(await fleet.tenant(), lambda: [api.url for api in fleet.of("api")])
            try:
                await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 1))
                for number in range(PROMPTS):
                    session, operation = await user.session(), user.new_id()
                    begun = time.perf_counter()
                    assert await user.submit(session, f"echo: {operation}", operation)
                    await user.receipt(operation)
                    (asked,) = [c.at for c in model.counted.values() if operation in c.prompt]
                    if number >= WARM_UP:
                        taken.append((asked - begun) * 1000)
            finally:
                await user.close()
                await fleet.stop()
    return _measures("POST to the first model request", taken, None)


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
    for name, queued in (("taken by a worker", False), ("by a job of the queue", True)):
        async with database() as db:
            rows += await first_requests(db, name, queued=queued)
    async with database() as db:
        rows += await posted(db)
    async with database() as db:
        rows += await failover(db)
    return [row.as_json() for row in rows]
