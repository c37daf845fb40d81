"""Which worker to give a new operation to: one that may accept and drive it in one go (design §6)."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager

from harness.clock import Clock
from harness.errors import StorageError
from storage_pg.open_operations import SessionOwner

# How long a list of the workers is good for. One that left meanwhile refuses.
_LIST_SECONDS = 1.0
# How long one is passed over: after it had no room; after it did not answer, which has cost somebody
# seconds; and after it refused to be asked by this process at all, which will not change soon.
FULL_SECONDS = 0.05
FAILED_SECONDS = 10.0
REFUSED_SECONDS = 60.0
_SESSIONS = 10_000


class Placement:
    """What this process knows of the workers. It need not be right: a worker without room refuses, and
    what nobody takes is accepted here and dispatched.

    A session goes where it was last: that worker may own it still. Any other goes to the worker
    that this process asks the least of.
    """

    def __init__(
        self, workers: Callable[[], Awaitable[list[SessionOwner]]], clock: Clock, rng: random.Random
    ) -> None:
        self._workers = workers
        self._clock = clock
        self._rng = rng
        self._known: list[SessionOwner] = []
        self._known_until = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._asked: Counter[str] = Counter()
        self._resting: dict[str, float] = {}
        self._last: OrderedDict[str, SessionOwner] = OrderedDict()

    async def choose(self, session_id: str) -> SessionOwner | None:
        """A worker to ask, None when there is none that might take it."""
        now = self._clock.monotonic()
        if now >= self._known_until:
            if self._looking is None:
                self._looking = asyncio.get_running_loop().create_task(self._look())
            await asyncio.shield(self._looking)
        able = [each for each in self._known if self._resting.get(each.host_id, now) <= now]
        last = self._last.get(session_id)
        if last is not None and last in able:
            return last
        if not able:
            return None
        least = min(self._asked[each.host_id] for each in able)
        return self._rng.choice([each for each in able if self._asked[each.host_id] == least])

    @contextmanager
    def asking(self, worker: SessionOwner) -> Generator[None]:
        """A worker is asked inside the block."""
        self._asked[worker.host_id] += 1
        try:
            yield
        finally:
            self._asked[worker.host_id] -= 1
            if not self._asked[worker.host_id]:
                del self._asked[worker.host_id]

    def took(self, worker: SessionOwner, session_id: str) -> None:
        """The worker took an operation of this session."""
        self._last[session_id] = worker
        self._last.move_to_end(session_id)
        while len(self._last) > _SESSIONS:
            self._last.popitem(last=False)

    def rest(self, worker: SessionOwner, seconds: float) -> None:
        """Ask others for so long."""
        self._resting[worker.host_id] = self._clock.monotonic() + seconds

    def forget(self, session_id: str) -> None:
        """The session is elsewhere now."""
        self._last.pop(session_id, None)

    async def _look(self) -> None:
        try:
            self._known = await self._workers()
        except StorageError:
            self._known = []
        finally:
            now = self._clock.monotonic()
            self._known_until = now + _LIST_SECONDS
            self._resting = {host: until for host, until in self._resting.items() if until > now}
            self._looking = None
