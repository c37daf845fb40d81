"""The job queue's side: the tasks, and the worker that runs them for a host (design §6)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable
from typing import Any, LiteralString

import psycopg
from procrastinate import App, JobContext, PsycopgConnector
from procrastinate import sql as queue_sql
from procrastinate.connector import Notify
from procrastinate.exceptions import ConnectorException
from psycopg import sql

from storage_pg.backoff import Backoff
from storage_pg.connect import address, connect
from storage_pg.open_operations import Difference, sweep
from storage_pg.partitions import ensure_ahead
from storage_pg.purge import DAY_MS, HOUR_MS, Retention, purge
from storage_pg.queries import QUERIES
from workers.deaths import WORKER_BEAT_SECONDS
from workers.dispatcher import DRIVE_TASK, QUEUE
from workers.ending import end_tasks
from workers.host import SessionHost
from workers.indexing import sweep_index
from workers.logs import about
from workers.meter import Purged

logger = logging.getLogger(__name__)

_CONCURRENCY = 16
# A notification that comes while the queue's worker looks is lost on it: it looks again after this.
_POLL_SECONDS = 0.5
_RESTART_FIRST = 0.1
_RESTART_LONGEST = 5.0
# What ran for so long did not fail at once.
_STEADY_SECONDS = 10.0
_PROBE_SECONDS = 5.0


# procrastinate's statements that run for every job, and ours in their place.
_RELAXED: dict[str, LiteralString] = {
    queue_sql.queries["fetch_job"]: QUERIES["queue_fetch_job"],
    queue_sql.queries["finish_job"]: QUERIES["queue_finish_job"],
}


class QueueConnector(PsycopgConnector):
    """Everything over the host's pool, which may lead through a pooler; LISTEN over a direct
    connection of its own.

    Taking and finishing jobs does not wait for the disk: a job that a crash of the database takes
    back is made again, because the operation it was for is in `open_operations`.
    """

    def __init__(self, direct_dsn: str, rng: random.Random) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]  # its JSON hooks are untyped
        self._direct_dsn = direct_dsn
        self._rng = rng

    async def execute_query_async(self, query: LiteralString, **arguments: Any) -> None:
        """Run a statement."""
        await super().execute_query_async(_RELAXED.get(query, query), **arguments)

    async def execute_query_one_async(
        self, query: LiteralString, **arguments: Any
    ) -> dict[str, Any]:
        """The first row; raises `NoResult` when there is none."""
        return await super().execute_query_one_async(_RELAXED.get(query, query), **arguments)

    async def listen_notify(self, on_notification: Notify, channels: Iterable[str]) -> None:
        """Hear of new jobs until cancelled; reconnects when the connection ends, more slowly each
        time it fails."""
        backoff = Backoff(_RESTART_FIRST, _RESTART_LONGEST, self._rng)
        while True:
            try:
                async with await connect(self._direct_dsn, "laneway-jobs") as connection:
                    backoff.reset()
                    for channel in channels:
                        await connection.execute(
                            sql.SQL("LISTEN {}").format(sql.Identifier(channel))
                        )
                    while True:
                        async for note in connection.notifies(timeout=_PROBE_SECONDS):
                            await on_notification(channel=note.channel, payload=note.payload)
                        await connection.execute("SELECT 1")
            except (psycopg.Error, OSError) as error:
                logger.warning("lost the connection that hears of jobs: %s", error)
                await asyncio.sleep(backoff.pause())


def make_app(host: SessionHost) -> App:
    """The procrastinate app of one process, its tasks bound to the host."""
    app = App(connector=QueueConnector(host.settings.direct_url, host.environment.rng))

    @app.task(name=DRIVE_TASK, queue=QUEUE)
    async def drive(tenant_id: str, session_id: str, lane: str, operation_id: str) -> str:
        with about(tenant=tenant_id, session=session_id, lane=lane, operation=operation_id):
            return await host.drive(tenant_id, session_id, lane, operation_id)

    @app.periodic(cron="* * * * *")
    @app.task(name="laneway.sweep", queue=QUEUE, queueing_lock="sweep", pass_context=True)
    async def sweep_operations(context: JobContext, timestamp: int) -> int:
        return sum((await sweep_now(host)).values())

    @app.periodic(cron="* * * * *")
    @app.task(name="laneway.search", queue=QUEUE, queueing_lock="search")
    async def index_sessions(timestamp: int) -> int:
        report = await sweep_index(host.pool, host.settings.search_metadata_fields)
        return report.sessions

    @app.periodic(cron="7 * * * *")
    @app.task(name="laneway.partitions_ahead", queue=QUEUE, queueing_lock="partitions")
    async def partitions_ahead(timestamp: int) -> int:
        return await make_partitions_ahead(host)

    @app.periodic(cron="23 * * * *")
    @app.task(name="laneway.purge", queue=QUEUE, queueing_lock="purge")
    async def purge_old_rows(timestamp: int) -> int:
        return sum((await purge_now(host)).values())

    # The app knows them by name.
    del drive, sweep_operations, index_sessions, partitions_ahead, purge_old_rows
    return app


async def sweep_now(host: SessionHost) -> Counter[Difference]:
    """Compare the scheduler's rows with the operations' own states and repair them; returns how
    many were wrong, by difference. A healthy system has none."""
    found: Counter[Difference] = Counter()
    async for repair in sweep(host.pool, host.environment.clock.now_ms, host.settings.polls):
        found[repair.difference] += 1
        host.metrics.repaired(repair.difference)
        logger.error(
            "repaired the row of operation %s in session %s: %s",
            repair.operation_id,
            repair.session_id,
            repair.difference,
        )
    host.metrics.swept(found.total())
    if found:
        host.dispatcher.poke()
    return found


async def purge_now(host: SessionHost) -> dict[Purged, int]:
    """Remove rows past their retention, batch after batch for a bounded time; returns how many. What
    is left waits for the next hour."""
    settings = host.settings
    keep = Retention(
        receipts_ms=None if settings.receipt_days is None else settings.receipt_days * DAY_MS,
        expired_keys_ms=settings.expired_key_hours * HOUR_MS,
    )
    gone = await purge(host.pool, host.environment.clock.now_ms(), keep)
    removed: dict[Purged, int] = {"receipts": gone.receipts, "idempotency_keys": gone.keys}
    for what, rows in removed.items():
        host.metrics.purged(what, rows)
    return removed


async def make_partitions_ahead(host: SessionHost) -> int:
    """Make the partitions of the coming periods; returns how many were missing."""
    dsn = host.settings.owner_database_url
    if dsn is None:
        logger.warning(
            "no LANEWAY_OWNER_DATABASE_URL: partitions are made by `laneway migrate` only"
        )
        return 0
    now = host.environment.clock.now_ms()
    count = host.settings.partitions_ahead + 1
    period = host.settings.partition_period

    def make() -> list[str]:
        with psycopg.connect(address(dsn, "laneway-partitions"), autocommit=True) as connection:
            return ensure_ahead(connection, now, count, period)

    return len(await asyncio.to_thread(make))


class JobRunner:
    """Runs the queue's worker for a host, and starts it again whenever it ends by itself."""

    def __init__(self, host: SessionHost) -> None:
        self._host = host
        self.app = make_app(host)
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Begin to take jobs."""
        # procrastinate takes any pool; its own type is less precise than ours.
        pool: Any = self._host.pool
        await self.app.open_async(pool)
        self._host.takes_work = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Take no more jobs and end those under way; they are short."""
        self._stopping = True
        self._host.takes_work = False
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        backoff = Backoff(_RESTART_FIRST, _RESTART_LONGEST, self._host.environment.rng)
        # The queue's worker may answer its cancellation with an error of the database instead: what
        # ends this loop is the flag, and the cancellation only hastens it.
        while not self._stopping:
            begun = self._host.environment.clock.monotonic()
            try:
                await self.app.run_worker_async(
                    queues=[QUEUE],
                    name=self._host.lease.host_id or "laneway",
                    concurrency=_CONCURRENCY,
                    fetch_job_polling_interval=_POLL_SECONDS,
                    shutdown_graceful_timeout=1.0,
                    delete_jobs="always",
                    install_signal_handlers=False,
                    update_heartbeat_interval=WORKER_BEAT_SECONDS,
                    stalled_worker_timeout=3 * WORKER_BEAT_SECONDS,
                )
            except (ConnectorException, psycopg.Error, OSError, AssertionError) as error:
                logger.warning("the queue's worker stopped: %s", error)
            if self._stopping:
                return
            if self._host.environment.clock.monotonic() - begun > _STEADY_SECONDS:
                backoff.reset()
            await asyncio.sleep(backoff.pause())
