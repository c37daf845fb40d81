"""One session that this process owns: its harness, the commands on it, the passes it answers for (design §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.codec import encode
from harness.context import BACKGROUND, Context
from harness.errors import Closed, HarnessError, HarnessFault, StorageError
from harness.result import Err, Ok
from harness.runtime.harness import AgentHarness
from storage_pg.due import DuePoll
from storage_pg.sessions import OwnedSession
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
from workers.passes import Passes, PassServices, Tenure
from workers.slots import Slot
from workers.watching import EndItem, EndReason, Feed, NoSuchLane, SnapshotItem, event_item

logger = logging.getLogger(__name__)

# However quiet a session with open work is, its owner looks again after this long (seconds).
_LOOK_SECONDS = 1.0


class Retired(HarnessError):
    """This process is giving the session back: look again for its owner."""

    def __init__(self) -> None:
        super().__init__("the session is being given back")


@dataclass(frozen=True, slots=True)
class Services:
    """What a live session needs of its process: what its passes need, a feed for each watcher, and
    `retired`, which hears of its end and of when something that stays open is due (Unix ms)."""

    passes: PassServices
    retired: Callable[[LiveSession, int | None], None]
    feed: Callable[[], Feed]


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
        host_id: str | None,
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
        self._clock = services.passes.clock
        self._draining = services.passes.draining
        self._duty = services.passes.duty
        self._passes = Passes(
            Tenure(self.tenant_id, self.session_id, host_id),
            owned.storage,
            harness,
            services.passes,
            self.look,
        )
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
        return self._duty.drives

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
        return self._passes.running

    def take_over(self, slot: Slot, operation_id: str) -> None:
        """Use this place for an operation that came with a drive, or give it back."""
        self._passes.take_over(slot, operation_id)
        self._wake.set()

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
            elif isinstance(reply.error, Closed):
                # Closed before the command had its turn: it was not executed, and the next owner will.
                raise Retired
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
        if isinstance(command, Resume) and self._duty.drives:
            self._passes.poll_now(command.lane)
        if isinstance(command, Drive | RequestAbort | Abort):
            self._passes.forgive()
        if isinstance(command, WAKING) and not self._duty.drives:
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
                now = self._clock.now_ms()
                due = await self._passes.start_due(now) if self._duty.drives else None
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

    def _wait_ms(self, now: int, due: int | None) -> float | None:
        """How long to sleep; None: nothing keeps the session here any more. What is due and only
        waits for a place does not keep it: it can wait for a drive anywhere."""
        draining = self._draining()
        soon = _LOOK_SECONDS * 1000 if due is None else min(_LOOK_SECONDS * 1000, max(due - now, 1))
        if self._passes.running:
            self._worked = True
        if self._passes.running or self._commands or self._wanted():
            self._idle_since = None
            return soon
        held = self._passes.in_line or (due is not None and due - now <= self._duty.hold_due_ms)
        if due is not None and not draining and held:
            self._idle_since = None
            return soon
        if draining or not self._worked:
            return None
        if self._idle_since is None:
            self._idle_since = now
        left = self._duty.linger_ms - (now - self._idle_since)
        return left if left > 0 else None

    # The end

    def _faulted(self, fault: HarnessFault) -> None:
        logger.warning("session %s stopped: %s", self.session_id, fault)
        if self._ending is None:
            self._ending = "fault"
        self._wake.set()

    async def _commands_done(self) -> None:
        # No new ones begin. Closing under those that have begun would leave their callers with an
        # outcome that nobody knows.
        while self._commands:
            self._wake.clear()
            await self._wake.wait()

    async def _give_back(self) -> None:
        try:
            async with asyncio.timeout(self._duty.close_ms / 1000):
                if self.harness.faulted is None:
                    await self._commands_done()
                await self.harness.close(BACKGROUND)
        except TimeoutError:
            logger.error("session %s does not close: it is given back as it is", self.session_id)  # noqa: TRY400 -- where it hangs is not where this stands
            self._storage.lose(StorageError("the session was given back before it had closed"))
        except Exception:
            logger.exception("session %s did not close in order", self.session_id)
        await self._passes.close()
        # Whatever went wrong: a live host must not stay on record as owner of what it does not drive.
        await self._storage.close(BACKGROUND)
        end = EndItem(self._ending or "released", self._storage.next_seq)
        for feed, unsubscribe in self._feeds.items():
            unsubscribe()
            feed.end(end)
        self._feeds.clear()
        self.closed.set()
        due = None if end.reason == "fault" else self._passes.next_due()
        self._services.retired(self, due)


def _taken(command: Command, fault: HarnessFault) -> OperationIdTaken | None:
    """The rejection when a fault means that the id of a new operation is another tenant's, or was
    taken a moment ago."""
    if not isinstance(command, Accept) or not isinstance(fault.cause, OperationExists):
        return None
    operation_id = command.request.operation_id or ""
    return OperationIdTaken(
        message=f"operation {operation_id} is another lane's", operation_id=operation_id
    )
