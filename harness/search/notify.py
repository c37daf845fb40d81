"""A poke that makes an index look at one session soon. It carries no content and may be lost (§2.8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from harness.clock import Clock
from harness.context import BACKGROUND
from harness.errors import HarnessError
from harness.operation.events import EntryAdded, HarnessEvent
from harness.search.service import SearchTarget
from harness.search.sync import SearchSource, sync_session

K = TypeVar("K", bound=Hashable)

_log = logging.getLogger(__name__)


class PokedPulls(Generic[K]):
    """Pulls what was poked, one after the other.

    A first poke waits `delay` seconds and takes the following ones of that key with it, so that
    what is busy is pulled steadily and not once per change. After each pull there are `pause`
    seconds of rest, and beyond `most` waiting keys a poke is dropped: whoever pokes all the time
    must not make pulling the process's main work. Failures are logged and left to the next poke or
    sweep.
    """

    def __init__(
        self,
        pull: Callable[[K], Awaitable[object]],
        clock: Clock,
        *,
        delay: float = 0.5,
        pause: float = 0.0,
        most: int = 10_000,
    ) -> None:
        self._pull = pull
        self._clock = clock
        self._delay = delay
        self._pause = pause
        self._most = most
        self._waiting: set[K] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._line = asyncio.Lock()
        self._closed = False

    def poke(self, key: K) -> None:
        """Pull this soon. Costs nothing and never raises; call it inside a running loop."""
        if self._closed or key in self._waiting or len(self._tasks) >= self._most:
            return
        self._waiting.add(key)
        task = asyncio.get_running_loop().create_task(self._later(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settled(self) -> None:
        """Return when everything poked so far is pulled or has failed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Take no more pokes and drop those that wait; a sweep finds what they meant. Idempotent."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _later(self, key: K) -> None:
        try:
            await self._clock.sleep(self._delay)
        finally:
            # From here on a poke means something that this pull may miss.
            self._waiting.discard(key)
        async with self._line:
            try:
                await self._pull(key)
            except HarnessError as error:
                _log.warning("session %s is not indexed: %s", key, error)
            except Exception:  # noqa: BLE001  # whatever a custom source raises, a hint may do no harm
                _log.exception("session %s is not indexed", key)
            if self._pause > 0:
                await self._clock.sleep(self._pause)


class SearchNotifier(PokedPulls[str]):
    """Pulls poked sessions from one source into one index."""

    def __init__(
        self, source: SearchSource, target: SearchTarget, clock: Clock, *, delay: float = 0.5
    ) -> None:
        async def pull(session_id: str) -> None:
            await sync_session(source, target, session_id, BACKGROUND)

        super().__init__(pull, clock, delay=delay)

    def listener(self, session_id: str) -> Callable[[HarnessEvent, object], None]:
        """A listener for `harness.events.on("*", ...)` that pokes when an entry was added."""

        def heard(event: HarnessEvent, _context: object) -> None:
            if isinstance(event, EntryAdded):
                self.poke(session_id)

        return heard
