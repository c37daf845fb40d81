"""Virtual time: a clock that stands still while there is work and jumps to the next timer when there is none."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from harness.environment import Environment
from harness.ids import Uuid7Generator

START_MS = 1_767_225_600_000  # 2026-01-01, so that ids look like ids of this age
_POLL_SECONDS = 0.000_5


class VirtualClock:
    """A `Clock` whose `sleep` costs no time.

    With `auto_advance`, time jumps to the earliest sleeper once nothing in the event loop can run
    and nobody holds the clock; otherwise only `advance` moves it.
    """

    def __init__(self, start_ms: int = START_MS, *, auto_advance: bool = True) -> None:
        self._now_us = start_ms * 1_000
        self._auto = auto_advance
        self._order = itertools.count()
        self._sleepers: list[tuple[int, int, asyncio.Future[None]]] = []
        self._held = 0
        self._watching = False

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self._now_us // 1_000

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._now_us / 1_000_000

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        due = self._now_us + max(1, round(seconds * 1_000_000))
        heapq.heappush(self._sleepers, (due, next(self._order), woken))
        self._watch()
        await woken

    @property
    def sleeping(self) -> int:
        """How many sleepers wait."""
        return sum(not woken.done() for _, _, woken in self._sleepers)

    @contextmanager
    def hold(self) -> Generator[None]:
        """Keep time still while something outside the event loop (a disk, a server) is at work."""
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1

    def advance(self, seconds: float) -> None:
        """Move time and wake every sleeper that is due by then."""
        self._now_us += round(seconds * 1_000_000)
        self._wake()

    def advance_to_next(self) -> bool:
        """Move time to the earliest sleeper and wake it alone; False when nobody sleeps."""
        while self._sleepers:
            due, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                self._now_us = max(self._now_us, due)
                woken.set_result(None)
                return True
        return False

    def _wake(self) -> None:
        while self._sleepers and self._sleepers[0][0] <= self._now_us:
            woken = heapq.heappop(self._sleepers)[2]
            if not woken.done():
                woken.set_result(None)

    def _watch(self) -> None:
        if self._auto and not self._watching:
            self._watching = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        # Runs as a callback, not as a task: whoever ends tasks to play a crash cannot hit it.
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        if not self._sleepers:
            self._watching = False
            return
        loop = asyncio.get_running_loop()
        if self._held:
            loop.call_later(_POLL_SECONDS, self._look)
            return
        # While this callback runs, the queue holds exactly what else could run now.
        # Any: the loop has no public way to say that nothing can run.
        runnable: Any = getattr(loop, "_ready", ())
        if not runnable:
            self._now_us = max(self._now_us, self._sleepers[0][0])
            self._wake()
        loop.call_soon(self._look)


def virtual_environment(seed: int = 1, *, auto_advance: bool = True) -> Environment:
    """Virtual time, and ids and randomness that a seed repeats."""
    clock = VirtualClock(auto_advance=auto_advance)
    return Environment(
        clock=clock,
        ids=Uuid7Generator(clock, random.Random(seed)),
        rng=random.Random(seed + 1),
    )
