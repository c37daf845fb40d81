"""A poke that makes an index look at one session soon. It carries no content and may be lost (§2.8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from harness.clock import Clock
from harness.context import BACKGROUND
from harness.errors import HarnessError
from harness.operation.events import EntryAdded, HarnessEvent
from harness.search.service import SearchTarget
from harness.search.sync import SearchSource, sync_session

_log = logging.getLogger(__name__)


class SearchNotifier:
    """Pulls poked sessions into an index, one after the other.

    A first poke waits `delay` seconds and takes the following ones of that session with it, so that
    a busy session is indexed steadily and not once per entry. Failures are logged and left to the
    next poke or sweep.
    """

    def __init__(
        self, source: SearchSource, target: SearchTarget, clock: Clock, *, delay: float = 0.5
    ) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._delay = delay
        self._waiting: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._line = asyncio.Lock()
        self._closed = False

    def poke(self, session_id: str) -> None:
        """Index this session soon. Costs nothing and never raises; call it inside a running loop."""
        if self._closed or session_id in self._waiting:
            return
        self._waiting.add(session_id)
        task = asyncio.get_running_loop().create_task(self._later(session_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def listener(self, session_id: str) -> Callable[[HarnessEvent, object], None]:
        """A listener for `harness.events.on("*", ...)` that pokes when an entry was added."""

        def heard(event: HarnessEvent, _context: object) -> None:
            if isinstance(event, EntryAdded):
                self.poke(session_id)

        return heard

    async def settled(self) -> None:
        """Return when everything poked so far is indexed or has failed."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Take no more pokes and drop those that wait; a sweep finds what they meant. Idempotent."""
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _later(self, session_id: str) -> None:
        try:
            await self._clock.sleep(self._delay)
        finally:
            # From here on a poke means something that this pull may miss.
            self._waiting.discard(session_id)
        try:
            async with self._line:
                await sync_session(self._source, self._target, session_id, BACKGROUND)
        except HarnessError as error:
            _log.warning("session %s is not indexed: %s", session_id, error)
        except Exception:  # noqa: BLE001  # whatever a custom source raises, a hint may do no harm
            _log.exception("session %s is not indexed", session_id)
