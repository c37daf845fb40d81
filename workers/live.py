"""One session that this process owns: its harness, the commands on it, the passes it answers for (design §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, assert_never

from harness.clock import Clock
from harness.codec import encode
from harness.context import BACKGROUND, Context
from harness.errors import (
    HarnessClosed,
    HarnessError,
    HarnessFault,
    StorageCorrupt,
    StorageError,
)
from harness.result import Err, Ok
from harness.runtime.drive import DriveOptions
from harness.runtime.harness import AgentHarness
from storage_pg.due import DueAt, DueNow, DuePoll
from storage_pg.open_operations import PassCount
from storage_pg.sessions import OwnedSession
from storage_pg.storage import OpenOperation
from storage_pg.writer import OperationExists
from workers.commands import (
    WAKING,
    Abort,
    Accept,
    Command,
    Drive,
    OperationIdTaken,
    Reply,
    RequestAbort,
    Resume,
)
from workers.execute import NeedsDriver, Surroundings, execute
from workers.logs import about, only_about
from workers.meter import HostMeter
from workers.poison import MOST_PASSES, end_as_crash_loop
from workers.watching import EndItem, EndReason, Feed, NoSuchLane, SnapshotItem, event_item

logger = logging.getLogger(__name__)

# However quiet a session with open work is, its owner looks again after this long (seconds).
_LOOK_SECONDS = 1.0
# Between passes that failed: doubled each time (milliseconds).
_BACKOFF_MS = 100
_BACKOFF_LONGEST_MS = 10_000


class Retired(HarnessError):
    """This process is giving the session back: look again for its owner."""

    def __init__(self) -> None:
        super().__init__("the session is being given back")


@dataclass(frozen=True, slots=True)
class Duty:
    """How a process of this kind owns. `drives`: it answers for due operations. Milliseconds:
    `linger_ms` without work before it gives a session back, `hold_due_ms` how soon something must
    be due to be waited for."""

    drives: bool
    linger_ms: int
    hold_due_ms: int


@dataclass(frozen=True, slots=True)
class Services:
    """What a live session needs of its process.

    `pass_begins` counts a pass, `pass_excused` takes that back; `due_rows` reads when the session's
    operations are due; `pass_ended` and `retired` tell the process, the latter with when something
    that stays open is due (Unix ms).
    """

    clock: Clock
    duty: Duty
    draining: Callable[[], bool]
    due_rows: Callable[[LiveSession], Awaitable[dict[str, int]]]
    pass_begins: Callable[[LiveSession, OpenOperation, str | None], Awaitable[PassCount | None]]
    pass_excused: Callable[[LiveSession, OpenOperation], Awaitable[None]]
    pass_ended: Callable[[], None]
    retired: Callable[[LiveSession, int | None], None]
    feed: Callable[[], Feed]
    meter: HostMeter


@dataclass(slots=True)
class _Trouble:
    """Passes of one operation that failed in a row."""

    failures: int
    not_before: int
    reason: str


class LiveSession:
    """An owned session. `start` begins its duty; it gives itself back when nothing keeps it, and
    `closed` is set when it has. `wanted` says whether somebody who asked for it is about to use it.
    """

    def __init__(
        self,
        owned: OwnedSession,
        harness: AgentHarness,
        surroundings: Surroundings,
        services: Services,
        wanted: Callable[[], bool],
    ) -> None:
        self.tenant_id = owned.claimed.tenant_id
        self.session_id = owned.claimed.id
        self.fence = owned.claimed.fence
        self.harness = harness
        self.closed = asyncio.Event()
        self._storage = owned.storage
        self._surroundings = surroundings
        self._services = services
        self._wanted = wanted
        self._wake = asyncio.Event()
        self._ending: EndReason | None = None
        self._commands = 0
        self._passes: dict[str, asyncio.Task[None]] = {}
        self._trouble: dict[str, _Trouble] = {}
        self._polls: dict[str, tuple[DuePoll, int]] = {}
        self._feeds: dict[Feed, Callable[[], None]] = {}
        self._worked = False
        self._idle_since: int | None = None
        self._task: asyncio.Task[None] | None = None

    # What the process does with it

    def start(self) -> None:
        """Begin to answer for the session."""
        self.harness.on_fault(self._faulted)
        if self.harness.faulted is not None:
            self._ending = "fault"
        self._task = asyncio.get_running_loop().create_task(self._answer_for())

    @property
    def ending(self) -> bool:
        """Whether it is being given back: it takes no more commands and watchers."""
        return self._ending is not None

    @property
    def drives(self) -> bool:
        """Whether this process answers for what is due."""
        return self._services.duty.drives

    def polled_operations(self, lane: str) -> list[str]:
        """The ids of the lane's open operations that wait for a poll."""
        return [
            operation.operation_id
            for operation in self._storage.open_operations()
            if operation.lane == lane and isinstance(operation.due, DuePoll)
        ]

    @property
    def driving(self) -> int:
        """How many passes run."""
        return len(self._passes)

    def look(self) -> None:
        """Look again at what is due."""
        self._wake.set()

    def lost(self, error: StorageError) -> None:
        """The lease is gone: stop at once and write nothing."""
        self._storage.lose(error)
        self.harness.fault(error, BACKGROUND)

    def end(self, reason: EndReason) -> None:
        """Give the session back now; what runs on it is stopped as a crash would stop it."""
        if self._ending is None:
            self._ending = reason
        self._wake.set()

    # Commands

    async def execute(self, command: Command, context: Context) -> Reply:
        """Run one command. Raises `Retired`, `HarnessFault`, `HarnessClosed` and `NeedsDriver`."""
        if self._ending is not None:
            raise Retired
        self._commands += 1
        try:
            with about(tenant=self.tenant_id, session=self.session_id):
                reply = await execute(self.harness, command, self._surroundings, context)
            if isinstance(reply, Ok):
                await self._after(command)
            return reply
        except NeedsDriver:
            self.end("moved")
            raise
        except HarnessFault as fault:
            taken = _taken(command, fault)
            if taken is None:
                raise
            return Err(taken)
        finally:
            self._commands -= 1
            self._wake.set()

    async def _after(self, command: Command) -> None:
        if isinstance(command, Resume) and self._services.duty.drives:
            for operation in self._storage.open_operations():
                if operation.lane == command.lane and isinstance(operation.due, DuePoll):
                    self._polls[operation.operation_id] = (operation.due, 0)
        if isinstance(command, Drive | RequestAbort | Abort):
            self._trouble.clear()
        if isinstance(command, WAKING) and not self._services.duty.drives:
            # A worker must be able to claim what this made due.
            self.end("moved")

    # Watchers

    async def watch(self, lane: str | None, context: Context) -> Feed:
        """A snapshot and the events after it. Raises `Retired`, `NoSuchLane` and what a closed or
        faulted harness raises."""
        if self._ending is not None:
            raise Retired
        feed = self._services.feed()
        if lane is None:
            session_watch = await self.harness.watch_session(context)
            watch, snapshot = session_watch, SnapshotItem(encode(session_watch.snapshot))
        else:
            facade = await self.harness.lane(lane, context)
            if facade is None:
                raise NoSuchLane(lane)
            lane_watch = await facade.watch(context)
            watch, snapshot = lane_watch, SnapshotItem(encode(lane_watch.snapshot))
        feed.push(snapshot)

        def hear(event: Any, _context: Context) -> None:
            # Any: an event listener takes every type of event.
            feed.push(event_item(event))
            if feed.ended:
                self.unwatch(feed)

        await watch.start(hear)
        if self.closed.is_set():
            watch.unsubscribe()
            raise Retired
        self._feeds[feed] = watch.unsubscribe
        return feed

    def unwatch(self, feed: Feed) -> None:
        """The watcher left."""
        unsubscribe = self._feeds.pop(feed, None)
        if unsubscribe is not None:
            unsubscribe()
        self._wake.set()

    # The duty: level-triggered, so that nothing that should have woken it can be missed for long

    async def _answer_for(self) -> None:
        only_about(tenant=self.tenant_id, session=self.session_id)
        try:
            while self._ending is None:
                self._wake.clear()
                now = self._services.clock.now_ms()
                due = await self._start_due(now)
                wait = self._wait_ms(now, due)
                if wait is None:
                    self._ending = "released"
                    break
                try:
                    async with asyncio.timeout(wait / 1000):
                        await self._wake.wait()
                except TimeoutError:
                    continue
        except HarnessFault:
            self._ending = "fault"
        except Exception:
            logger.exception("the owner of session %s failed", self.session_id)
            self._ending = "fault"
        finally:
            await self._give_back()

    async def _start_due(self, now: int) -> int | None:
        """Start a pass for everything that is due; returns when the next thing is (Unix ms)."""
        if not self._services.duty.drives:
            return None
        nearest: int | None = None
        for operation in self._storage.open_operations():
            if operation.operation_id in self._passes:
                continue
            instant = await self._instant(operation)
            if self._ending is not None:
                return None
            if instant <= now and not self._services.draining():
                if instant > 0 and operation.operation_id not in self._trouble:
                    self._services.meter.woke((now - instant) / 1000)
                self._start_pass(operation)
            elif nearest is None or instant < nearest:
                nearest = instant
        return nearest

    async def _instant(self, operation: OpenOperation) -> int:
        trouble = self._trouble.get(operation.operation_id)
        if trouble is not None:
            return trouble.not_before
        match operation.due:
            case DueNow():
                return 0
            case DueAt(instant=instant):
                return instant
            case DuePoll():
                known = self._polls.get(operation.operation_id)
                if known is None or known[0] != operation.due:
                    rows = await self._services.due_rows(self)
                    known = (operation.due, rows.get(operation.operation_id, 0))
                    self._polls[operation.operation_id] = known
                return known[1]
            case _:
                assert_never(operation.due)

    def _wait_ms(self, now: int, due: int | None) -> float | None:
        """How long to sleep; None: nothing keeps the session here any more."""
        duty = self._services.duty
        draining = self._services.draining()
        if self._passes:
            self._worked = True
        if self._passes or self._commands or self._wanted():
            self._idle_since = None
            return _LOOK_SECONDS * 1000
        if due is not None and not draining and due - now <= duty.hold_due_ms:
            self._idle_since = None
            return min(max(due - now, 1), _LOOK_SECONDS * 1000)
        if draining or not self._worked:
            return None
        if self._idle_since is None:
            self._idle_since = now
        left = duty.linger_ms - (now - self._idle_since)
        return left if left > 0 else None

    # Passes

    def _start_pass(self, operation: OpenOperation) -> None:
        task = asyncio.get_running_loop().create_task(self._drive(operation))
        self._passes[operation.operation_id] = task

    async def _drive(self, operation: OpenOperation) -> None:
        operation_id = operation.operation_id
        only_about(
            tenant=self.tenant_id,
            session=self.session_id,
            lane=operation.lane,
            operation=operation_id,
        )
        try:
            await self._pass(operation)
            self._trouble.pop(operation_id, None)
        except (HarnessFault, HarnessClosed) as stopped:
            # The session ends, and says why.
            if self._excuses(stopped):
                await self._excuse(operation)
        except Exception as error:  # noqa: BLE001 -- a hook, or the database: the operation stays open
            self._failed(operation_id, error)
        finally:
            self._passes.pop(operation_id, None)
            self._services.pass_ended()
            self._wake.set()

    async def _pass(self, operation: OpenOperation) -> None:
        operation_id = operation.operation_id
        trouble = self._trouble.get(operation_id)
        reason = None if trouble is None else trouble.reason
        # None: the row is lost, which the sweep repairs, or the operation is over, which the lane says.
        counted = await self._services.pass_begins(self, operation, reason)
        lane = await self.harness.lane(operation.lane, BACKGROUND)
        if lane is None:
            raise StorageError(f"operation {operation_id} has no lane {operation.lane!r}")
        if counted is not None and counted.passes > MOST_PASSES:
            await end_as_crash_loop(lane, operation_id, MOST_PASSES, counted.reason)
            return
        options = DriveOptions(operation_id, poll_deferred=operation.deferred)
        driven = await lane.drive(options, BACKGROUND)
        if isinstance(driven, Err):
            logger.debug("nothing to drive: %s", driven.error.message)

    def _excuses(self, stopped: HarnessFault | HarnessClosed) -> bool:
        """Whether a pass was stopped by something that is no fault of its operation."""
        if isinstance(stopped, HarnessClosed):
            return True
        # The database away, or the lease lost: not a broken invariant, not a damaged session.
        return isinstance(stopped.cause, StorageError) and not isinstance(
            stopped.cause, StorageCorrupt
        )

    async def _excuse(self, operation: OpenOperation) -> None:
        try:
            await self._services.pass_excused(self, operation)
        except StorageError as error:
            logger.debug("a pass of operation %s stays counted: %s", operation.operation_id, error)

    def _failed(self, operation_id: str, error: Exception) -> None:
        trouble = self._trouble.get(operation_id)
        failures = 1 if trouble is None else trouble.failures + 1
        pause = min(_BACKOFF_MS << min(failures - 1, 16), _BACKOFF_LONGEST_MS)
        reason = f"{type(error).__name__}: {error}"
        # What a hook says may quote a prompt: the reason is kept with the operation, not in the log.
        logger.warning("a pass of operation %s failed: %s", operation_id, error)
        self._trouble[operation_id] = _Trouble(
            failures, self._services.clock.now_ms() + pause, reason
        )

    # The end

    def _faulted(self, fault: HarnessFault) -> None:
        logger.warning("session %s stopped: %s", self.session_id, fault)
        if self._ending is None:
            self._ending = "fault"
        self._wake.set()

    async def _give_back(self) -> None:
        try:
            await self.harness.close(BACKGROUND)
        except Exception:
            logger.exception("session %s did not close in order", self.session_id)
        # Whatever went wrong: a live host must not stay on record as owner of what it does not drive.
        await self._storage.close(BACKGROUND)
        if self._passes:
            await asyncio.wait(list(self._passes.values()))
        end = EndItem(self._ending or "released", self._storage.next_seq)
        for feed, unsubscribe in self._feeds.items():
            unsubscribe()
            feed.end(end)
        self._feeds.clear()
        self.closed.set()
        self._services.retired(self, None if end.reason == "fault" else self._next_due())

    def _next_due(self) -> int | None:
        """When the first of the operations that stay open is due, as far as is known here."""
        instants: list[int] = []
        for operation in self._storage.open_operations():
            match operation.due:
                case DueNow():
                    instants.append(self._services.clock.now_ms())
                case DueAt(instant=instant):
                    instants.append(instant)
                case DuePoll():
                    known = self._polls.get(operation.operation_id)
                    instants += [] if known is None else [known[1]]
                case _:
                    assert_never(operation.due)
        return min(instants, default=None)


def _taken(command: Command, fault: HarnessFault) -> OperationIdTaken | None:
    """The rejection when a fault means that the id of a new operation is another tenant's, or was
    taken a moment ago."""
    if not isinstance(command, Accept) or not isinstance(fault.cause, OperationExists):
        return None
    operation_id = command.request.operation_id or ""
    return OperationIdTaken(
        message=f"operation {operation_id} is another lane's", operation_id=operation_id
    )
