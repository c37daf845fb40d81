"""Nothing that is over piles up: jobs, their events, hosts, keys; and the periodic task counts what it removes."""

from __future__ import annotations

from tests.operator.kit import scrape
from tests.workers.kit import Fleet, eventually
from workers.jobs import JobRunner, purge_now
from workers.settings import Settings


async def test_jobs_go_when_they_are_done(fleet: Fleet) -> None:
    api = await fleet.api()
    await fleet.worker()
    operations = [await fleet.prompt(api, await fleet.session(), "echo: x") for _ in range(4)]
    assert set(await fleet.settled(*operations)) == {"completed"}

    async def clean() -> bool:
        # A job may be made once more for what is being claimed; it goes like the others.
        jobs = await fleet.sql(
            "SELECT 1 FROM public.procrastinate_jobs WHERE task_name = 'laneway.drive'"
        )
        events = await fleet.sql(
            "SELECT 1 FROM public.procrastinate_events AS e"
            " LEFT JOIN public.procrastinate_jobs AS j ON j.id = e.job_id WHERE j.id IS NULL"
        )
        return not jobs and not events

    await eventually(clean)


async def test_hosts_go_when_they_leave_or_are_found_dead(fleet: Fleet) -> None:
    leaving, dying = await fleet.worker(), await fleet.worker()
    staying = await fleet.worker()
    await fleet.stop(leaving)
    await fleet.kill(dying)

    async def alone() -> bool:
        rows = await fleet.sql("SELECT id::text FROM laneway.hosts")
        return rows == [(staying.host_id,)]

    await eventually(alone)


async def test_the_hourly_task_removes_what_the_settings_say(fleet: Fleet) -> None:
    worker = await fleet.host("worker", jobs=False, receipt_days=7, expired_key_hours=1)
    runner = JobRunner(worker)
    assert "laneway.purge" in runner.app.tasks
    assert any(
        periodic.task.name == "laneway.purge"
        for periodic in runner.app.periodic_registry.periodic_tasks.values()
    )
    await fleet.sql(
        "INSERT INTO laneway.operations (id, tenant_id, session_id, lane, kind, status, accepted_at,"
        " finished_at) SELECT gen_random_uuid(), %s, gen_random_uuid(), 'main', 'run', 'done', n, n"
        " FROM generate_series(1, 3) AS n",
        fleet.tenant,
    )
    await fleet.sql(
        "INSERT INTO laneway.idempotency_keys (tenant_id, key, fingerprint, created_at, expires_at)"
        " VALUES (%s, 'old', 'f', 0, 1)",
        fleet.tenant,
    )
    assert await purge_now(worker) == {"receipts": 3, "idempotency_keys": 1}
    assert await purge_now(worker) == {"receipts": 0, "idempotency_keys": 0}
    seen = await scrape(worker)
    assert seen("purged_rows_total", table="receipts") == 3
    assert seen("purged_rows_total", table="idempotency_keys") == 1


def test_receipts_are_kept_for_ever_by_default() -> None:
    assert Settings.model_fields["receipt_days"].default is None
