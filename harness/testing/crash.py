"""Plays the death of a process inside one process: everything it had started ends, nothing is written.

A `Process` owns every task that is started from inside it. It dies at a crash point: from then on its
code does not continue, its storage refuses, and `bury` takes its tasks away. What was handed to the
storage before is finished by the storage, as a database finishes what a dead client sent it.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

from harness.clock import Clock
from harness.context import Context
from harness.entries import Entry, EntryStructure
from harness.storage.address import Value, ValueList
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    EntryScan,
    ListElement,
    ListRead,
    Storage,
    StoredValue,
    UsageScan,
)
from harness.storage.writes import Write
from harness.testing.decorated import StorageDecorator
from harness.testing.instrumented import describe_all
from harness.testing.virtual_clock import VirtualClock
from harness.usage import SessionStats, UsageRow

T = TypeVar("T")
PointKind: TypeAlias = Literal["before commit", "after commit", "effect"]
Observer: TypeAlias = Callable[[Sequence[Write], CommitResult], None]

_current: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Process:
    """One life. `crash_at` is the ordinal of the point at which it dies, None for never.

    `kinds` says what counts as a point. `points` are the labels of those that it came by.
    """

    def __init__(
        self, crash_at: int | None, kinds: frozenset[PointKind], clock: VirtualClock
    ) -> None:
        self.points: list[str] = []
        self.alive = True
        self.died_at: str | None = None
        self._crash_at = crash_at
        self._kinds = kinds
        self._clock = clock
        self._died = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._outside = contextvars.copy_context()
        self._foreign: set[asyncio.Task[Any]] = set()

    def adopt(self, task: asyncio.Task[Any]) -> None:
        """A task of this process was made."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def die_at(self, point: int) -> None:
        """Die at the next point but `point` - 1; 1 is the next one."""
        self._crash_at = len(self.points) + point

    def kill(self) -> None:
        """Die now, whatever is under way."""
        if self.alive:
            self.alive = False
            self.died_at = "killed"
            self._died.set()

    @property
    def waits(self) -> bool:
        """Whether somebody outside works for this process."""
        return bool(self._foreign)

    async def point(self, kind: PointKind, label: str) -> None:
        """Come by a possible end of this life; never returns to a dead process."""
        if self.alive and kind in self._kinds:
            self.points.append(f"{len(self.points) + 1}. {kind}: {label}")
            if len(self.points) == self._crash_at:
                self.alive = False
                self.died_at = self.points[-1]
                self._died.set()
        if not self.alive:
            await asyncio.get_running_loop().create_future()

    async def outside(self, work: Coroutine[Any, Any, T]) -> T:
        """Have somebody else (a disk, a server) do this, who finishes it even if we die meanwhile."""
        if not self.alive:
            work.close()
            raise asyncio.CancelledError
        task = asyncio.get_running_loop().create_task(work, context=self._outside.copy())
        self._foreign.add(task)
        task.add_done_callback(self._foreign.discard)
        with self._clock.hold():
            result = await asyncio.shield(task)
        if not self.alive:
            await asyncio.get_running_loop().create_future()
        return result

    async def live(self, life: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Run a life to its end; None when it died first. Its remains are buried in either case."""
        loop = asyncio.get_running_loop()
        inside = contextvars.copy_context()
        inside.run(_current.set, self)
        with _adoption(loop):
            main = loop.create_task(life(), context=inside)
            death = loop.create_task(self._died.wait())
            try:
                await asyncio.wait((main, death), return_when=asyncio.FIRST_COMPLETED)
                return main.result() if self.alive else None
            finally:
                death.cancel()
                await self.bury()

    async def bury(self) -> None:
        """End all tasks; whatever they do on their way out reaches nobody."""
        self.alive = False
        while remaining := [task for task in self._tasks if not task.done()]:
            for task in remaining:
                task.cancel()
            await asyncio.wait(remaining, timeout=1)
        while self._foreign:
            await asyncio.wait(self._foreign)


def current_process() -> Process:
    """The process whose code is running; raises outside of any."""
    process = _current.get()
    if process is None:
        raise RuntimeError("no process is being played here")
    return process


@contextlib.contextmanager
def _adoption(loop: asyncio.AbstractEventLoop) -> Generator[None]:
    before = loop.get_task_factory()

    # Any: the loop passes whatever its own create_task takes.
    def make(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        context: contextvars.Context | None = options.get("context")
        owner = _current.get() if context is None else context.get(_current)
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **options)
        if owner is not None:
            owner.adopt(task)
        return task

    loop.set_task_factory(make)
    try:
        yield
    finally:
        loop.set_task_factory(before)


class CrashStorage(StorageDecorator):
    """The storage as a process that may die sees it. `observer` hears of every durable commit."""

    def __init__(self, inner: Storage, process: Process, observer: Observer) -> None:
        super().__init__(inner)
        self._process = process
        self._observer = observer

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """Commit, with a point of death on either side."""
        process = self._process
        label = ", ".join(describe_all(writes))
        await process.point("before commit", label)

        async def durable() -> CommitResult:
            result = await self.inner.commit(writes, context)
            self._observer(writes, result)
            return result

        result = await process.outside(durable())
        await process.point("after commit", label)
        return result

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        """See `Storage.get_entries`."""
        return await self._process.outside(super().get_entries(ids, context))

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """See `Storage.get_value`."""
        return await self._process.outside(super().get_value(address, context))

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        """See `Storage.scan_values`."""
        return await self._process.outside(super().scan_values(prefix, context))

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """See `Storage.read_list`."""
        return await self._process.outside(super().read_list(address, options, context))

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        """See `Storage.scan_branch`."""
        return await self._process.outside(super().scan_branch(query, context))

    async def scan_branch_structure(
        self, query: BranchScan, context: Context
    ) -> list[EntryStructure]:
        """See `Storage.scan_branch_structure`."""
        return await self._process.outside(super().scan_branch_structure(query, context))

    async def scan_entries(self, query: EntryScan, context: Context) -> list[Entry]:
        """See `Storage.scan_entries`."""
        return await self._process.outside(super().scan_entries(query, context))

    async def scan_usage(self, query: UsageScan, context: Context) -> list[UsageRow]:
        """See `Storage.scan_usage`."""
        return await self._process.outside(super().scan_usage(query, context))

    async def get_stats(self, context: Context) -> SessionStats:
        """See `Storage.get_stats`."""
        return await self._process.outside(super().get_stats(context))

    async def close(self, context: Context) -> None:
        """See `Storage.close`. A dead process closes nothing."""
        await self._process.outside(super().close(context))


class ProcessClock:
    """The clock of a process: starting a timer is an effect, and so a possible end."""

    def __init__(self, inner: Clock, process: Process) -> None:
        self._inner = inner
        self._process = process

    def now_ms(self) -> int:
        """See `Clock.now_ms`."""
        return self._inner.now_ms()

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._inner.monotonic()

    async def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        await self._process.point("effect", "timer started")
        await self._inner.sleep(seconds)
        await self._process.point("effect", "timer ended")
