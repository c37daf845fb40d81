"""What a fleet carries: runs per second over HTTP with 1, 32 and 256 lanes at once, by one worker and by two, and 200 runs in one session.

A run is a prompt, a model's call of a tool, the tool, and the model's answer, in a session of its
own: two requests to the API, the second of which waits for the outcome. API, workers, database and
the asking process share one machine; the models and the tool take no time.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from tests.bench.backends import database
from tests.bench.measure import Measure, share_of
from tests.fleet.processes import FleetOfProcesses
from tests.fleet.user import tool_prompt
from tests.postgres import Database

LANES = (1, 32, 256)
SECONDS = 8.0
# Runs in one session, and how many at its beginning and at its end are compared.
LONG, WINDOW = 200, 20
MODELS = json.dumps([{"provider": "scripted", "modelId": "prompted"}])


async def run() -> list[dict[str, object]]:
    """Each number of workers on a database of its own."""
    rows: list[Measure] = []
    for workers in (1, 2):
        async with database() as db:
            with tempfile.TemporaryDirectory() as name:
                fleet = FleetOfProcesses(
                    db,
                    Path(name),
                    LANEWAY_MODELS=MODELS,
                    LANEWAY_POOL_SIZE="16",
                    LANEWAY_MAX_DRIVES=str(max(LANES)),
                    LANEWAY_TENANT_DRIVES=str(max(LANES)),
                )
                try:
                    await fleet.have("api", 1)
                    await fleet.have("worker", workers)
                    rows += await _all_lanes(fleet, workers)
                finally:
                    await fleet.stop()
    async with database() as db:
        rows += await _one_session(db)
    return [row.as_json() for row in rows]


async def _one_session(db: Database) -> list[Measure]:
    """Does a run cost more when its session has had many?"""
    with tempfile.TemporaryDirectory() as name:
        fleet = FleetOfProcesses(db, Path(name), LANEWAY_MODELS=MODELS)
        try:
            await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 1))
            async with await _client(fleet) as client:
                await _play(client, 1, 2.0)
                session = await _session(client)
                taken: list[float] = []
                for _ in range(LONG):
                    begun = time.perf_counter()
                    await _run(client, session)
                    taken.append((time.perf_counter() - begun) * 1000)
        finally:
            await fleet.stop()
    early, late = (sorted(some) for some in (taken[:WINDOW], taken[-WINDOW:]))
    first, last = share_of(early, 0.5), share_of(late, 0.5)
    return [
        Measure(f"a run in one session, median of runs 1 to {WINDOW}", first, "ms"),
        Measure(f"a run in one session, median of the last {WINDOW} of {LONG}", last, "ms"),
        Measure("late against early", last / first, "ratio", 1.5, at_most=True),
    ]


async def _all_lanes(fleet: FleetOfProcesses, workers: int) -> list[Measure]:
    rows: list[Measure] = []
    async with await _client(fleet) as client:
        for lanes in LANES:
            await _play(client, lanes, 1.0)
            before = await _commits(fleet)
            taken, seconds = await _play(client, lanes, SECONDS)
            after = await _commits(fleet)
            where = f"{lanes} at once, {workers} worker{'s' if workers > 1 else ''}"
            rows += [
                Measure(f"runs per second, {where}", len(taken) / seconds, "1/s"),
                Measure(f"one run, median, {where}", share_of(taken, 0.5), "ms"),
                Measure(f"one run, p99, {where}", share_of(taken, 0.99), "ms"),
                Measure(f"commits per run, {where}", (after - before) / len(taken), "commits"),
            ]
    return rows


async def _client(fleet: FleetOfProcesses) -> aiohttp.ClientSession:
    # One that costs little: it shares the processor with what it measures.
    (api,) = fleet.of("api")
    return aiohttp.ClientSession(
        api.url,
        headers={"Authorization": f"Bearer {await fleet.tenant()}"},
        timeout=aiohttp.ClientTimeout(total=120),
        connector=aiohttp.TCPConnector(limit=max(LANES)),
    )


async def _play(
    client: aiohttp.ClientSession, lanes: int, seconds: float
) -> tuple[list[float], float]:
    """The milliseconds of each run, in order of size, and how long all of it took."""
    taken: list[float] = []
    begun = time.perf_counter()
    end = begun + seconds

    async def lane() -> None:
        while time.perf_counter() < end:
            started = time.perf_counter()
            await _run(client, await _session(client))
            taken.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return sorted(taken), time.perf_counter() - begun


async def _session(client: aiohttp.ClientSession) -> str:
    async with client.post("/v1/sessions", json={}) as made:
        return str((await made.json())["id"])


async def _run(client: aiohttp.ClientSession, session: str) -> None:
    async with client.post(
        f"/v1/sessions/{session}/lanes/main/operations",
        json={"kind": "prompt", "prompt": tool_prompt("quick", 0, session)},
        headers={"Prefer": "wait=60"},
    ) as answer:
        said: dict[str, Any] = await answer.json()
    assert said.get("outcome") == "completed", said


async def _commits(fleet: FleetOfProcesses) -> int:
    # The server's counters follow within a second.
    await asyncio.sleep(1.5)
    rows = await asyncio.to_thread(
        fleet.rows,
        "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()",
    )
    return int(rows[0][0])
