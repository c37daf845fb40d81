"""Whatever becomes of jobs, of the queue's tables and of hints, each operation is driven all the same (design §6)."""

from __future__ import annotations

import asyncio

import pytest

from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.dispatcher import DRIVE_TASK, QUEUE

TABLES = (
    "public.procrastinate_jobs, public.procrastinate_events, public.procrastinate_workers,"
    " public.procrastinate_periodic_defers"
)


async def _queued(fleet: Fleet) -> int:
    return (await fleet.sql("SELECT count(*) FROM public.procrastinate_jobs"))[0][0]


async def test_the_whole_queue_may_be_emptied(fleet: Fleet) -> None:
    api = await fleet.api()
    waiting = [await fleet.prompt(api, await fleet.session(), "echo: x") for _ in range(3)]
    await eventually(lambda: api.dispatcher.counts.jobs == 3)
    assert await _queued(fleet) == 3
    await fleet.sql(f"TRUNCATE {TABLES}")
    worker = await fleet.worker()
    assert await fleet.settled(*waiting) == ["completed"] * 3
    # And under a worker that is at work: its own row is gone, too.
    running = await fleet.prompt(api, await fleet.session(), gated("g"))
    await GATES["g"].entered.wait()
    await fleet.sql(f"TRUNCATE {TABLES}")
    more = [await fleet.prompt(api, await fleet.session(), "echo: y") for _ in range(3)]
    assert await fleet.settled(*more) == ["completed"] * 3
    GATES["g"].release.set()
    assert await fleet.settled(running) == ["completed"]
    assert worker.ready


async def test_a_worker_that_the_queue_forgot_takes_jobs_again(fleet: Fleet) -> None:
    await fleet.worker()

    async def known() -> bool:
        return bool(await fleet.sql("SELECT 1 FROM public.procrastinate_workers"))

    await eventually(known)
    # As if it had been pruned for want of a heartbeat.
    await fleet.sql("DELETE FROM public.procrastinate_workers")
    await fleet.sql(
        "INSERT INTO public.procrastinate_jobs (queue_name, task_name, args)"
        " VALUES (%s, %s, jsonb_build_object('tenant_id', %s::text, 'session_id', %s::text,"
        " 'lane', 'main', 'operation_id', %s::text))",
        QUEUE,
        DRIVE_TASK,
        fleet.tenant,
        await fleet.session(),
        fleet.tenant,
    )

    async def done() -> bool:
        return await _queued(fleet) == 0

    await eventually(done)


@pytest.mark.parametrize("twin", [False, True], ids=["alone", "beside a queued twin"])
@pytest.mark.parametrize("owner", ["nobody", "a dead worker", "a live worker"])
async def test_a_job_that_nobody_finishes_keeps_its_operation_from_nothing(
    fleet: Fleet, owner: str, twin: bool
) -> None:
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: x")
    await eventually(lambda: api.dispatcher.counts.jobs == 1)
    worker_id = None
    if owner != "nobody":
        age = "1 hour" if owner == "a dead worker" else "0 s"
        rows = await fleet.sql(
            "INSERT INTO public.procrastinate_workers (last_heartbeat)"
            " VALUES (now() - %s::interval) RETURNING id",
            age,
        )
        worker_id = rows[0][0]
    await fleet.sql(
        "UPDATE public.procrastinate_jobs SET status = 'doing', worker_id = %s", worker_id
    )
    if twin:
        await fleet.sql(
            "INSERT INTO public.procrastinate_jobs (queue_name, task_name, queueing_lock, args)"
            " SELECT queue_name, task_name, queueing_lock, args FROM public.procrastinate_jobs"
        )
    await fleet.worker()
    assert await fleet.settled(operation) == ["completed"]
    assert len(await fleet.texts(session)) == 2


async def test_a_new_process_may_have_the_name_of_a_dead_one(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    for number in range(1, 4):
        worker = await fleet.worker(host_name="the same")
        if number == 1:
            operation = await fleet.prompt(api, session, gated("g", "gated_safe"))
        await eventually(lambda n=number: GATES["g"].starts == n)
        await fleet.kill(worker)
    await fleet.worker(host_name="the same")
    await eventually(lambda: GATES["g"].starts == 4)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    rows = await fleet.sql("SELECT count(*) FROM laneway.hosts WHERE name = 'the same'")
    assert rows == [(1,)]


async def test_nobody_need_be_told(fleet: Fleet) -> None:
    api = await fleet.api()
    worker = await fleet.worker()
    # Neither hears hints nor dispatches what it accepts.
    for task in (*api._tasks, worker._tasks[0]):
        task.cancel()
    await asyncio.wait([*api._tasks, worker._tasks[0]])
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: x")
    assert await fleet.settled(operation) == ["completed"]
