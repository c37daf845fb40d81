"""Leaving: what is driven goes on for a while, the rest goes elsewhere, watchers are told."""

from __future__ import annotations

import asyncio

import pytest
from procrastinate.exceptions import ConnectorException

from harness.context import BACKGROUND
from storage_pg.hosts import list_hosts
from tests.workers.kit import Fleet, eventually, watching
from tests.workers.test_ownership import gated
from tests.workers.test_wakes import FAILING
from tests.workers.tools import GATES
from workers.commands import CreateLane, Inspect
from workers.jobs import JobRunner
from workers.watching import EndItem


async def test_a_drive_under_way_is_finished_where_it_is(fleet: Fleet) -> None:
    leaving = await fleet.worker()
    session = await fleet.session()
    operation = await fleet.prompt(leaving, session, gated("g"))
    await GATES["g"].entered.wait()
    drained = asyncio.ensure_future(leaving.drain(60))
    staying = await fleet.worker()
    await eventually(lambda: leaving.draining)
    assert not leaving.ready
    seen = await fleet.ok(staying, session, Inspect(lane="main"))
    assert seen["current"]["status"] == "running"
    GATES["g"].release.set()
    await drained
    assert await fleet.settled(operation) == ["completed"]
    assert GATES["g"].starts == 1
    assert not leaving.registry.busy


@pytest.mark.parametrize("text", ["echo: x", FAILING])
async def test_what_becomes_due_beside_a_drive_does_not_wait_for_the_drain(
    fleet: Fleet, text: str
) -> None:
    leaving = await fleet.worker(retry_max=1)
    session = await fleet.session()
    await fleet.ok(leaving, session, CreateLane(name="side"))
    operation = await fleet.prompt(leaving, session, gated("g"))
    await GATES["g"].entered.wait()
    drained = asyncio.ensure_future(leaving.drain(3_600))
    staying = await fleet.worker(retry_max=1)
    await eventually(lambda: leaving.draining)
    # It owns the session for what it drives there, so it answers for everything in it.
    beside = await fleet.prompt(staying, session, text, lane="side")
    await fleet.settled(beside)
    assert not drained.done()
    assert await fleet.outcome(operation) is None
    GATES["g"].release.set()
    await drained
    assert await fleet.settled(operation) == ["completed"]


async def test_what_does_not_finish_in_time_goes_on_elsewhere(fleet: Fleet) -> None:
    leaving = await fleet.worker()
    session = await fleet.session()
    operation = await fleet.prompt(leaving, session, gated("g", "gated_safe"))
    await GATES["g"].entered.wait()
    await fleet.worker()
    await leaving.drain(0.05)
    assert leaving.lease.held == frozenset()
    await fleet.stop(leaving)
    await eventually(lambda: GATES["g"].starts == 2)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_draining_host_takes_nothing_new(fleet: Fleet) -> None:
    leaving = await fleet.worker()
    session = await fleet.session()
    await leaving.drain(0)
    hosts = await list_hosts(leaving.pool)
    assert [host.draining for host in hosts] == [True]
    operation = await fleet.prompt(leaving, session, "echo: x")
    word = await leaving.drive(fleet.tenant, session, "main", operation)
    assert word == "draining"
    await eventually(lambda: not leaving.registry.busy)
    assert await fleet.outcome(operation) is None
    await fleet.worker()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_wait_for_a_retry_is_not_waited_out(fleet: Fleet) -> None:
    leaving = await fleet.worker(retry_base_ms=1_000, retry_max=1)
    session = await fleet.session()
    operation = await fleet.prompt(leaving, session, FAILING)

    async def waiting() -> bool:
        rows = await fleet.sql(
            "SELECT due_at > (extract(epoch FROM clock_timestamp()) * 1000)::bigint + 200"
            " FROM laneway.open_operations"
        )
        return rows == [(True,)]

    await eventually(waiting)
    await fleet.worker(retry_base_ms=1_000, retry_max=1)
    await leaving.drain(600)
    assert not leaving.registry.busy
    assert await fleet.settled(operation) == ["failed"]


async def test_watchers_are_told_to_connect_elsewhere(fleet: Fleet) -> None:
    leaving = await fleet.worker()
    api = await fleet.api()
    idle, busy = await fleet.session(), await fleet.session()
    operation = await fleet.prompt(api, busy, gated("g", "gated_safe"))
    await GATES["g"].entered.wait()
    async with (
        watching(leaving, fleet.tenant, idle) as one,
        watching(leaving, fleet.tenant, busy) as two,
        watching(api, fleet.tenant, busy) as three,
    ):
        await eventually(lambda: all(screen.snapshots for screen in (one, two, three)))
        await leaving.drain(0)
        await eventually(lambda: (one.ended, two.ended) == ("draining", "draining"))
        # The one at another process goes on with whoever comes.
        await fleet.stop(leaving)
        await fleet.worker()
        await eventually(lambda: GATES["g"].starts == 2)
        GATES["g"].release.set()
        await fleet.settled(operation)
        rows = await fleet.sql(
            "SELECT id::text FROM laneway.entries WHERE session_id = %s ORDER BY seq", busy
        )
        await eventually(lambda: len(three.entries) >= len(rows))
        assert three.entries == [row[0] for row in rows]
        assert three.ended is None


async def test_a_drained_process_shows_nothing_more(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    await api.drain(0)
    items = [item async for item in api.watch(fleet.tenant, session, "main", BACKGROUND)]
    assert items == [EndItem("draining")]


async def test_closing_twice_is_closing_once(fleet: Fleet) -> None:
    worker = await fleet.worker()
    session = await fleet.session()
    await fleet.prompt(worker, session, gated("g"))
    await GATES["g"].entered.wait()
    await asyncio.gather(worker.close(), worker.close())
    other = await fleet.api()
    assert [host.id for host in await list_hosts(other.pool)] == [other.host_id]


async def test_taking_jobs_ends_though_the_queue_answers_its_cancellation_with_an_error(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = JobRunner(await fleet.host("worker", jobs=False))
    begun = asyncio.Event()
    runs = 0

    async def run_worker(**_options: object) -> None:
        nonlocal runs
        runs += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectorException from None

    monkeypatch.setattr(runner.app, "run_worker_async", run_worker)
    await runner.start()
    await begun.wait()
    await runner.stop()
    assert runs == 1
