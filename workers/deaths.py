"""Notices dead and silent hosts and puts away what they left (design §6, Failover)."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import psycopg

from harness.clock import Clock
from harness.errors import StorageError
from storage_pg.hosts import bury_dead_hosts, cut_off_silent_hosts
from storage_pg.queries import QUERIES
from storage_pg.storage import Pool
from workers.dispatcher import QUEUE
from workers.meter import SILENT, HostMeter

logger = logging.getLogger(__name__)

# Looking for silent hosts and abandoned jobs is not urgent: every so many seconds.
_SLOW_SECONDS = 2.0
# The queue's workers say every two seconds that they live; a job takes seconds at the most.
WORKER_BEAT_SECONDS = 2.0
_WORKER_SILENT_SECONDS = 7.0
_LONGEST_JOB_SECONDS = 300.0


@dataclass(slots=True)
class DeathCounts:
    """What was found."""

    buried: int = 0
    cut_off: int = 0
    jobs: int = 0


class DeathWatch:
    """Every worker runs one. When hosts were cleared away, `hopeless` ends what they died of too
    often, and `died` is called."""

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        rng: random.Random,
        *,
        interval: float,
        silent_seconds: float,
        hopeless: Callable[[], Awaitable[None]],
        died: Callable[[], None],
        meter: HostMeter = SILENT,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._rng = rng
        self._interval = interval
        self._silent_seconds = silent_seconds
        self._hopeless = hopeless
        self._died = died
        self._meter = meter
        self.counts = DeathCounts()

    async def run(self) -> None:
        """Look until cancelled."""
        slow_at = self._clock.monotonic()
        while True:
            try:
                slow = self._clock.monotonic() >= slow_at
                if slow:
                    slow_at = self._clock.monotonic() + _SLOW_SECONDS
                await self.look(slow=slow)
            except StorageError as error:
                logger.warning("cannot look for dead hosts: %s", error)
            # Not all workers at the same instant.
            await self._clock.sleep(self._interval * (0.75 + self._rng.random() / 2))

    async def look(self, *, slow: bool) -> None:
        """Look once; `slow` also for silent hosts and abandoned jobs."""
        if slow:
            for host_id in await cut_off_silent_hosts(self._pool, self._silent_seconds):
                logger.warning("host %s fell silent and was cut off", host_id)
                self.counts.cut_off += 1
                self._meter.host_cut_off()
        dead = await bury_dead_hosts(self._pool)
        for host in dead:
            self._meter.host_died(host.sessions)
            logger.warning(
                "host %s (%s, %s) is dead; it owned %d sessions",
                host.id,
                host.name,
                host.role,
                host.sessions,
            )
        self.counts.buried += len(dead)
        if dead:
            # Before anybody comes for what the dead left.
            try:
                await self._hopeless()
            finally:
                self._died()
        if dead or slow:
            self.counts.jobs += await put_away_jobs(self._pool)


async def put_away_jobs(pool: Pool) -> int:
    """Remove jobs that a worker took and will not finish; returns how many."""
    try:
        async with pool.connection() as connection:
            cursor = await connection.execute(
                QUERIES["put_away_jobs"],
                {
                    "queue": QUEUE,
                    "silent": _WORKER_SILENT_SECONDS,
                    "longest": _LONGEST_JOB_SECONDS,
                },
            )
            return cursor.rowcount
    except psycopg.Error as error:
        raise StorageError(f"cannot put jobs away: {error}") from error
