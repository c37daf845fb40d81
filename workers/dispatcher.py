"""Sends operations that wait for a drive to where they are driven: here, while there is room, or by a job to whoever has some (design §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from harness.clock import Clock
from harness.errors import StorageError
from storage_pg.open_operations import DueOperation, Outlook, dispatch_jobs, outlook
from storage_pg.storage import Pool
from workers.meter import SILENT, HostMeter

logger = logging.getLogger(__name__)

QUEUE = "laneway"
DRIVE_TASK = "laneway.drive"

# However sure of the next instant a dispatcher is, it looks again after this long: what it was not
# told of (a lost job, a host that died with its timers) waits no longer than this and a little more.
_LOOK_SECONDS = 1.0
_AT_MOST = 100
_TROUBLE_SECONDS = 0.5


@dataclass(slots=True)
class DispatchCounts:
    """How often this dispatcher looked, the jobs that it made, and what it took without a job."""

    looks: int = 0
    jobs: int = 0
    taken: int = 0


class Dispatcher:
    """One per process. A worker's watches the clock; an API's looks only when it is poked.

    `here` says how many operations this process can drive beside those that it drives, `take` drives
    one: a wake that needs no other process needs no job, which would cost it a few commits and tens of
    milliseconds.
    """

    def __init__(
        self,
        pool: Pool,
        clock: Clock,
        *,
        tenant_limit: int,
        watches: bool,
        here: Callable[[], int],
        take: Callable[[DueOperation], None],
        meter: HostMeter = SILENT,
    ) -> None:
        self._pool = pool
        self._clock = clock
        self._tenant_limit = tenant_limit
        self._watches = watches
        self._here = here
        self._take = take
        self._meter = meter
        self._wake = asyncio.Event()
        self._poked = False
        self._alarm: int | None = None
        self.backlog = False
        self.counts = DispatchCounts()

    def poke(self) -> None:
        """Something is due now."""
        self._poked = True
        self._wake.set()

    def room(self) -> None:
        """A drive ended here: there is room if something waits for it."""
        if self.backlog:
            self.poke()

    def expect(self, instant: int) -> None:
        """Something becomes due at this instant (Unix ms); nothing is asked of the database before."""
        if self._alarm is None or instant < self._alarm:
            self._alarm = instant
            self._wake.set()

    async def run(self) -> None:
        """Dispatch until cancelled. Trouble with the database is waited out."""
        while True:
            try:
                await self._look()
            except StorageError as error:
                logger.warning("dispatching failed: %s", error)
                await self._clock.sleep(_TROUBLE_SECONDS)
                continue
            await self._sleep()

    async def _look(self) -> None:
        while True:
            self._poked = False
            self._alarm = None
            now = self._clock.now_ms()
            sent = await dispatch_jobs(
                self._pool,
                now,
                queue=QUEUE,
                task=DRIVE_TASK,
                keep=max(self._here(), 0),
                at_most=_AT_MOST,
                tenant_limit=self._tenant_limit,
            )
            for operation in sent.kept:
                self._take(operation)
            self.counts.looks += 1
            self.counts.jobs += len(sent.queued)
            self.counts.taken += len(sent.kept)
            for operation in (*sent.kept, *sent.queued):
                self._meter.dispatched((now - operation.due_at) / 1000)
            if len(sent.kept) + len(sent.queued) >= _AT_MOST:
                continue
            self._expect(await outlook(self._pool, now))
            return

    def _expect(self, seen: Outlook) -> None:
        self.backlog = seen.backlog
        if seen.next_due is not None and (self._alarm is None or seen.next_due < self._alarm):
            self._alarm = seen.next_due

    async def _sleep(self) -> None:
        deadline = self._clock.monotonic() + _LOOK_SECONDS
        while not self._poked:
            self._wake.clear()
            left: float | None = None
            if self._watches:
                left = deadline - self._clock.monotonic()
                if self._alarm is not None:
                    left = min(left, (self._alarm - self._clock.now_ms()) / 1000)
                if left <= 0:
                    return
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                return
