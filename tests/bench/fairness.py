"""Five thousand operations of one tenant, then one of another: what the one waits for."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.bench.backends import database
from tests.bench.measure import Measure, share_of
from tests.bench.requests import Requests
from tests.postgres import Database
from tests.workers.kit import Fleet
from workers.commands import CreateLane

CROWD = 5_000
LANES = 50
SINGLES = 20
PLACES = 8
# What one operation of the crowd takes: the model's answer, word by word.
_MODELS: list[dict[str, Any]] = [
    {"provider": "scripted", "modelId": "prompted", "scripted": {"deltaDelay": 0.05}}
]
_PROMPT = "echo: one two three four five six seven eight"


async def _flood(fleet: Fleet, tenant: str) -> None:
    """Accepted by an API host, and by now and then an owner: sessions of many lanes."""
    api = fleet.hosts[0]
    sessions = [await fleet.session_of(tenant) for _ in range(CROWD // LANES)]

    async def fill(session: str) -> None:
        await fleet.prompt_of(tenant, api, session, _PROMPT)
        for number in range(1, LANES):
            name = f"lane{number}"
            await fleet.ok_of(tenant, api, session, CreateLane(name=name))
            await fleet.prompt_of(tenant, api, session, _PROMPT, name)

    line = asyncio.Semaphore(16)

    async def in_turn(session: str) -> None:
        async with line:
            await fill(session)

    await asyncio.gather(*(in_turn(session) for session in sessions))


async def _measure(db: Database) -> list[Measure]:
    fleet = Fleet(db)
    api = await fleet.api(models=_MODELS)
    crowd, single = await fleet.new_tenant(), await fleet.new_tenant()
    await _flood(fleet, crowd)
    await fleet.worker(models=_MODELS, max_drives=PLACES, pool_size=8)
    requests = Requests()
    waited: list[float] = []
    overtaken: list[float] = []
    for _ in range(SINGLES):
        session = await fleet.session_of(single)
        asked = requests.next(session)
        before = await _ended(fleet, crowd)
        begun = time.perf_counter()
        await fleet.prompt_of(single, api, session, _PROMPT)
        waited.append((await asked - begun) * 1000)
        overtaken.append(float(await _ended(fleet, crowd) - before))
        await asyncio.sleep(0.2)
    left = (await fleet.sql("SELECT count(*) FROM laneway.open_operations"))[0][0]
    for host in list(fleet.hosts):
        host.draining = True
    await fleet.close()
    requests.close()
    ordered = sorted(waited)
    return [
        Measure("operations of the crowd that still wait", float(left), "operations", 1_000.0),
        Measure("wait of another tenant's single one, median", share_of(ordered, 0.5), "ms"),
        Measure("wait of another tenant's single one, most", ordered[-1], "ms"),
        Measure(
            "the crowd's that ended in that time, most",
            max(overtaken),
            "operations",
            2.0 * PLACES,
            at_most=True,
        ),
    ]


async def _ended(fleet: Fleet, tenant: str) -> int:
    rows = await fleet.sql(
        "SELECT count(*) FROM laneway.operations WHERE tenant_id = %s AND status = 'done'", tenant
    )
    return int(rows[0][0])


async def run() -> list[dict[str, object]]:
    """On a database of its own."""
    async with database() as db:
        return [row.as_json() for row in await _measure(db)]
