"""The search index follows the sessions: swept in bounded passes by any number of workers, poked when one was worked on."""

from __future__ import annotations

import asyncio

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.search.notify import PokedPulls
from harness.search.service import SearchQuery
from storage_pg.search import PostgresSearch
from tests.workers.kit import Fleet, eventually
from workers.host import SessionHost
from workers.indexing import sweep_index
from workers.jobs import JobRunner


async def hits(fleet: Fleet, host: SessionHost, text: str, tenant: str | None = None) -> int:
    """How many entries are found."""
    index = PostgresSearch(host.pool, tenant or fleet.tenant)
    query = SearchQuery(text=text, limit=1_000)
    return len([hit async for hit in index.search_entries(query, BACKGROUND)])


async def test_what_a_worker_did_is_found_when_it_gave_the_session_back(fleet: Fleet) -> None:
    worker = await fleet.worker()
    session = await fleet.session()
    await fleet.settled(await fleet.prompt(worker, session, "echo: a heron"))

    async def found() -> bool:
        return await hits(fleet, worker, "heron") == 2

    await eventually(found)
    await fleet.settled(await fleet.prompt(worker, session, "echo: a bittern"))

    async def found_more() -> bool:
        return await hits(fleet, worker, "bittern") == 2

    await eventually(found_more)


async def test_a_pass_is_bounded_and_the_next_goes_on(fleet: Fleet) -> None:
    host = await fleet.api()
    tenants = [fleet.tenant, await fleet.new_tenant()]
    made = [await fleet.session_of(tenant, name="x") for tenant in tenants * 3]
    worker = await fleet.worker()
    for tenant, session in zip(tenants * 3, made, strict=True):
        await fleet.settled(await fleet.prompt_of(tenant, worker, session, "echo: a heron"))
    await fleet.stop(worker)
    await fleet.sql("DELETE FROM laneway.search_entries")
    await fleet.sql("DELETE FROM laneway.search_sessions")
    counts = [(await sweep_index(host.pool, (), at_most=4)).sessions for _ in range(3)]
    assert counts == [4, 2, 0]
    assert [await hits(fleet, host, "heron", tenant) for tenant in tenants] == [6, 6]


async def test_two_sweeps_at_once_index_everything_once(fleet: Fleet) -> None:
    one, two = await fleet.worker(), await fleet.worker(jobs=False)
    sessions = [await fleet.session() for _ in range(8)]
    for session in sessions:
        await fleet.settled(await fleet.prompt(one, session, "echo: a heron"))
    await fleet.sql("DELETE FROM laneway.search_entries")
    await fleet.sql("DELETE FROM laneway.search_sessions")
    reports = await asyncio.gather(*(sweep_index(host.pool, ()) for host in (one, two, one)))
    assert [report.failures for report in reports] == [{}, {}, {}]
    assert await hits(fleet, one, "heron") == 16
    assert (await sweep_index(two.pool, ())).sessions == 0


async def test_the_sweep_is_a_job_that_comes_every_minute(fleet: Fleet) -> None:
    worker = await fleet.worker(jobs=False)
    app = JobRunner(worker).app
    (periodic,) = [
        task
        for task in app.periodic_registry.periodic_tasks.values()
        if task.task.name == "laneway.search"
    ]
    assert (periodic.cron, periodic.task.queueing_lock) == ("* * * * *", "search")


async def test_pokes_are_taken_together_and_dropped_beyond_the_line() -> None:
    pulled: list[str] = []
    gate = asyncio.Event()

    async def pull(key: str) -> None:
        pulled.append(key)
        await gate.wait()

    pulls = PokedPulls(pull, SystemClock(), delay=0.0, most=3)
    for key in ("a", "a", "b", "c", "d", "b"):
        pulls.poke(key)
    gate.set()
    await pulls.settled()
    assert pulled == ["a", "b", "c"]
    pulls.poke("d")
    await pulls.settled()
    assert pulled[-1] == "d"
    await pulls.close()
    pulls.poke("e")
    await pulls.settled()
    assert "e" not in pulled
