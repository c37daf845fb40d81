"""Waits and wakes: retries, deferred polls, lost jobs, lost rows, failing passes."""

from __future__ import annotations

import json

import pytest

from harness.context import BACKGROUND
from harness.storage.protocol import UsageScan
from storage_pg.open_operations import dispatch_jobs
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import CreateLane
from workers.deaths import put_away_jobs
from workers.dispatcher import DRIVE_TASK, QUEUE
from workers.jobs import make_partitions_ahead, sweep_now

FAILING = "fail: " + json.dumps({"message": "overloaded", "kind": "retryable"})


@pytest.mark.parametrize("hold_due_ms", [0, 5_000])
async def test_a_retry_is_made_by_the_owner_or_by_whoever_comes(
    fleet: Fleet, hold_due_ms: int
) -> None:
    worker = await fleet.worker(hold_due_ms=hold_due_ms, retry_max=2)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, FAILING)
    assert await fleet.settled(operation) == ["failed"]
    reader = worker.sessions.reader(fleet.tenant, session)
    attempts = await reader.scan_usage(UsageScan(), BACKGROUND)
    assert len(attempts) == 3


async def test_a_lost_job_costs_time_and_no_operation(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: hello")
    await eventually(lambda: api.dispatcher.counts.jobs == 1)
    await fleet.sql("DELETE FROM public.procrastinate_jobs")
    await fleet.worker()
    assert await fleet.settled(operation) == ["completed"]


async def test_an_operation_has_at_most_one_queued_job(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    await fleet.prompt(api, session, "echo: hello")
    await eventually(lambda: api.dispatcher.counts.jobs == 1)
    for _ in range(3):
        await dispatch_jobs(
            api.pool,
            api.environment.clock.now_ms() + 60_000,
            queue=QUEUE,
            task=DRIVE_TASK,
            again_after_ms=0,
        )
    rows = await fleet.sql("SELECT count(*) FROM public.procrastinate_jobs")
    assert rows == [(1,)]


async def test_jobs_of_dead_workers_are_put_away(fleet: Fleet) -> None:
    api = await fleet.api()
    await fleet.sql(
        "INSERT INTO public.procrastinate_workers (last_heartbeat)"
        " VALUES (now()), (now() - interval '1 hour')"
    )
    (live,), (silent,) = await fleet.sql(
        "SELECT id FROM public.procrastinate_workers ORDER BY last_heartbeat DESC"
    )
    for number, (worker, queueing_lock) in enumerate(
        ((live, "a"), (silent, "b"), (None, "c"), (silent, "d"))
    ):
        await fleet.sql(
            "INSERT INTO public.procrastinate_jobs"
            " (queue_name, task_name, status, worker_id, queueing_lock, args)"
            " VALUES (%s, %s, 'doing', %s, %s, jsonb_build_object('number', %s::int))",
            QUEUE,
            DRIVE_TASK,
            worker,
            queueing_lock,
            number,
        )
    await fleet.sql(
        "INSERT INTO public.procrastinate_events (job_id, type)"
        " SELECT id, 'started' FROM public.procrastinate_jobs"
    )
    # A queued twin must not be in the way, nor be taken away.
    await fleet.sql(
        "INSERT INTO public.procrastinate_jobs (queue_name, task_name, queueing_lock, args)"
        " VALUES (%s, %s, 'd', '{\"number\": 9}')",
        QUEUE,
        DRIVE_TASK,
    )
    assert await put_away_jobs(api.pool) == 3
    rows = await fleet.sql(
        "SELECT args ->> 'number', status::text FROM public.procrastinate_jobs ORDER BY id"
    )
    assert rows == [("0", "doing"), ("9", "todo")]


async def test_a_sweep_finds_nothing_in_a_healthy_system(fleet: Fleet) -> None:
    worker = await fleet.worker()
    sessions = [await fleet.session() for _ in range(3)]
    open_ = await fleet.prompt(worker, sessions[0], gated("g"))
    await GATES["g"].entered.wait()
    over = await fleet.prompt(worker, sessions[1], "echo: x")
    await fleet.settled(over)
    assert await sweep_now(worker) == {}
    GATES["g"].release.set()
    assert await fleet.settled(open_) == ["completed"]


async def test_a_sweep_repairs_lost_and_stray_rows(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    await fleet.ok(api, session, CreateLane(name="side"))
    lost = await fleet.prompt(api, session, "echo: x")
    late = await fleet.prompt(api, session, "echo: y", lane="side")
    await fleet.sql("DELETE FROM laneway.open_operations WHERE operation_id = %s", lost)
    await fleet.sql(
        "UPDATE laneway.open_operations SET due_at = due_at + 1000000 WHERE operation_id = %s",
        late,
    )
    stray = api.environment.ids.next()
    await fleet.sql(
        "INSERT INTO laneway.open_operations"
        " (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)"
        " VALUES (%s, %s, %s, 'main', 'run', 0, 0)",
        stray,
        fleet.tenant,
        session,
    )
    assert await sweep_now(api) == {"missing": 1, "stray": 1, "wrong_due": 1}
    assert await sweep_now(api) == {}
    await fleet.worker()
    assert await fleet.settled(lost, late) == ["completed", "completed"]


async def test_a_pass_that_fails_is_tried_again(fleet: Fleet) -> None:
    worker = await fleet.worker()
    session = await fleet.session()
    failures = 2
    begins = worker.registry._services.passes.begins

    async def failing(*arguments: object) -> None:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            raise ConnectionError("not now")
        await begins(*arguments)  # pyright: ignore[reportArgumentType]

    object.__setattr__(worker.registry._services.passes, "begins", failing)
    operation = await fleet.prompt(worker, session, "echo: hello")
    assert await fleet.settled(operation) == ["completed"]
    assert failures < 0


async def test_tenants_take_turns(fleet: Fleet) -> None:
    api = await fleet.api()
    busy, quiet = await fleet.new_tenant(), await fleet.new_tenant()
    await fleet.host("worker", jobs=False, max_drives=4, death_check_ms=60_000)
    # This worker takes no jobs: what is dispatched stays dispatched.
    crowd: list[str] = []
    for _ in range(6):
        session = await fleet.session_of(busy)
        crowd.append(await fleet.prompt_of(busy, api, session, "echo: x"))
    session = await fleet.session_of(quiet)
    lone = await fleet.prompt_of(quiet, api, session, "echo: y")

    async def dispatched() -> set[str]:
        rows = await fleet.sql(
            "SELECT operation_id::text FROM laneway.open_operations WHERE dispatched_at IS NOT NULL"
        )
        return {row[0] for row in rows}

    # The fleet has room for four, which the crowd took before the lone one came, or shares with it.
    async def settled() -> bool:
        found = await dispatched()
        return lone in found and len(found) >= 4

    await eventually(settled)
    assert len(await dispatched()) <= 5


async def test_a_tenant_has_no_more_drives_than_its_limit(fleet: Fleet) -> None:
    worker = await fleet.worker()
    await fleet.sql("UPDATE laneway.tenants SET limits = '{\"concurrentDrives\": 2}'")
    api = await fleet.api()
    operations = [
        await fleet.prompt(api, await fleet.session(), gated(str(number))) for number in range(4)
    ]
    await eventually(lambda: sum(gate.starts for gate in GATES.values()) == 2)
    await eventually(lambda: worker.dispatcher.backlog)
    assert worker.registry.driving == 2
    for number in range(4):
        GATES[str(number)].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 4


async def test_a_full_worker_takes_more_when_there_is_room(fleet: Fleet) -> None:
    worker = await fleet.worker(max_drives=1)
    api = await fleet.api()
    first = await fleet.prompt(api, await fleet.session(), gated("one"))
    await GATES["one"].entered.wait()
    second = await fleet.prompt(api, await fleet.session(), gated("two"))
    assert worker.slots.free == 0
    GATES["one"].release.set()
    await GATES["two"].entered.wait()
    GATES["two"].release.set()
    assert await fleet.settled(first, second) == ["completed", "completed"]


async def test_partitions_are_made_ahead(fleet: Fleet) -> None:
    without = await fleet.api()
    assert await make_partitions_ahead(without) == 0
    host = await fleet.api(owner_database_url=fleet.database.owner_dsn, partitions_ahead=6)
    made = await make_partitions_ahead(host)
    assert made > 0
    assert await make_partitions_ahead(host) == 0
