"""The doctor's round: each check once, none of them after one that it needs has failed."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import psycopg

from app.doctor import fleet, server
from app.doctor.findings import Finding, bad, skipped
from harness.clock import Clock
from harness.errors import StorageError
from storage_pg.connect import connect, open_pool
from storage_pg.fleet_state import fleet_state
from storage_pg.operator import observe_hosts
from workers.settings import Settings


async def examine(settings: Settings, clock: Clock) -> AsyncGenerator[Finding]:
    """Look at everything and change nothing."""
    reached, facts = await server.reach(settings, clock)
    for finding in reached:
        yield finding
    if facts is None:
        yield skipped("everything else", "the database does not answer at both addresses")
        return
    yield server.clock_skew(facts)
    schema = await server.schema(settings)
    yield schema
    if schema.verdict == "fail":
        yield skipped("everything else", "the schema is not this build's")
        return
    try:
        async for finding in _inside(settings, clock, facts):
            yield finding
    except (psycopg.Error, StorageError) as error:
        said = str(error).strip().partition("\n")[0]
        yield bad("the rest", f"the database refused: {said}", "Look at the database's own log.")


async def _inside(
    settings: Settings, clock: Clock, facts: server.ServerFacts
) -> AsyncGenerator[Finding]:
    async with (
        open_pool(settings.database_url, size=1, application="laneway-doctor") as pool,
        await connect(settings.direct_url, "laneway-doctor") as direct,
    ):
        yield await server.role(direct, facts)
        found = await observe_hosts(pool)
        state = await fleet_state(pool, clock.now_ms())
        for finding in server.capacity(settings, facts, found):
            yield finding
        yield await fleet.partitions(settings, clock.now_ms())
        yield fleet.owner_address(settings)
        yield await fleet.queue(direct)
        for finding in fleet.hosts(settings, found, state):
            yield finding
        yield fleet.undriven(state, clock.now_ms())
        yield await fleet.differences(pool, settings, clock.now_ms)
