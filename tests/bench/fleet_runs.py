"""What a fleet carries: runs per second over HTTP with 1, 32 and 256 lanes at once, by one worker and by two.

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

LANES = (1, 32, 256)
SECONDS = 8.0
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
    return [row.as_json() for row in rows]


async def _all_lanes(fleet: FleetOfProcesses, workers: int) -> list[Measure]:
    (api,) = fleet.of("api")
    rows: list[Measure] = []
    # A client that costs little: it shares the processor with what it measures.
    async with aiohttp.ClientSession(
        api.url,
        headers={"Authorization": f"Bearer {await fleet.tenant()}"},
        timeout=aiohttp.ClientTimeout(total=120),
        connector=aiohttp.TCPConnector(limit=max(LANES)),
    ) as client:
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


async def _play(client: aiohttp.ClientSession, lanes: int, seconds: float) -> tuple[list[float], float]:
    """The milliseconds of each run, in order of size, and how long all of it took."""
    taken: list[float] = []
    begun = time.perf_counter()
    end = begun + seconds

    async def lane() -> None:
        while time.perf_counter() < end:
            started = time.perf_counter()
            await _run(client)
            taken.append((time.perf_counter() - started) * 1000)

    await asyncio.gather(*(lane() for _ in range(lanes)))
    return sorted(taken), time.perf_counter() - begun


async def _run(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/sessions", json={}) as made:
        session: str = (await made.json())["id"]
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
