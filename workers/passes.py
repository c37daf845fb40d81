"""The drive passes of one owned session: begun when something is due and there is a place, counted, ended (design §6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import assert_never

from harness.clock import Clock
from harness.context import BACKGROUND, AbortController, Context
from harness.errors import (
    DriveAbandoned,
    HarnessClosed,
    HarnessFault,
    OperationCancelledByCaller,
    StorageError,
)
from harness.operation.values import operation_state
from harness.result import Err
from harness.runtime.drive import DriveOptions
from harness.runtime.harness import AgentHarness
from storage_pg.due import DueAt, DueNow, DuePoll
from storage_pg.passes import PassCount, Suspected, TenantFull
from storage_pg.storage import OpenOperation, PostgresStorage
from workers.logs import only_about
from workers.meter import HostMeter
from workers.poison import MOST_PASSES, end_as_crash_loop, is_excused
from workers.slots import Slot, Slots, TenantLines
from workers.suspects import Suspects, Turn

logger = logging.getLogger(__name__)

# Between passes that failed: doubled each time (milliseconds).
_BACKOFF_MS = 100
_BACKOFF_LONGEST_MS = 10_000
# How soon to ask again whether a tenant that was full elsewhere has room (milliseconds).
_FULL_MS = 1_000


@dataclass(frozen=True, slots=True)
class Duty:
    """How a process of this kind owns. `drives`: it answers for due operations. Milliseconds:
    `linger_ms` without work before it gives a session back, `hold_due_ms` how soon something must
    be due to be waited for, `abort_ms` how long a pass may go on after its operation was cancelled,
    `close_ms` how long a session may take to close."""

    drives: bool
    linger_ms: int
    hold_due_ms: int
    abort_ms: int
    close_ms: int


@dataclass(frozen=True, slots=True)
class Tenure:
    """One session, owned by one incarnation of a host."""

    tenant_id: str
    session_id: str
    host_id: str | None


@dataclass(frozen=True, slots=True)
class PassServices:
    """What passes need of their process.

    `begins` admits and counts a pass, with the reason why the one before failed and whether it is a
    suspect's turn; `ends` says that one left its operation open, and whether that counts; `over` that
    one has ended, however it did. `due_rows` reads when the session's operations are due (Unix ms);
    `traced` is a pass's place in its trace. `tenants` holds who waits until a tenant has fewer passes
    under way, `suspects` who waits until no other suspect is driven here.
    """

    clock: Clock
    duty: Duty
    slots: Slots
    tenants: TenantLines
    suspects: Suspects
    draining: Callable[[], bool]
    due_rows: Callable[[Tenure], Awaitable[dict[str, int]]]
    begins: Callable[
        [Tenure, OpenOperation, str | None, bool],
        Awaitable[PassCount | TenantFull | Suspected | None],
    ]
    ends: Callable[[Tenure, OpenOperation, bool, str | None], Awaitable[None]]
    over: Callable[[Tenure], None]
    traced: Callable[[Tenure, OpenOperation], AbstractContextManager[Context]]
    meter: HostMeter


@dataclass(slots=True)
class _Trouble:
    """Passes of one operation that failed in a row."""

    failures: int
    not_before: int
    reason: str


@dataclass(frozen=True, slots=True)
class _Suspect:
    """An operation that hosts died under in the state with this sequence number: until the state moves
    on it is driven in its turn."""

    turn: Turn
    state_seq: int | None


@dataclass(slots=True)
class _Pass:
    """One pass under way. `alone`: it is a suspect's turn; `counted`: the database knows of it;
    `refused`: the tenant was full, or a suspect has to wait for its turn."""

    slot: Slot
    began: int
    alone: bool
    controller: AbortController = field(default_factory=AbortController)
    task: asyncio.Task[None] | None = None
    counted: bool = False
    refused: bool = False


class Passes:
    """Level-triggered: `start_due` looks at what is due now, whatever made it so. `look` is called
    when it should be called again."""

    def __init__(
        self,
        tenure: Tenure,
        storage: PostgresStorage,
        harness: AgentHarness,
        services: PassServices,
        look: Callable[[], None],
    ) -> None:
        self._tenure = tenure
        self._storage = storage
        self._harness = harness
        self._services = services
        self._look = look
        self._running: dict[str, _Pass] = {}
        # Places asked for, or taken over, by operations that are due.
        self._slots: dict[str, Slot] = {}
        self._suspects: dict[str, _Suspect] = {}
        self._trouble: dict[str, _Trouble] = {}
        self._polls: dict[str, tuple[DuePoll, int]] = {}
        self._full_until = 0
        self._closed = False

    @property
    def running(self) -> int:
        """How many passes run."""
        return len(self._running)

    @property
    def in_line(self) -> bool:
        """Whether a suspect waits here for its turn."""
        return bool(self._suspects.keys() - self._running.keys())

    def take_over(self, slot: Slot, operation_id: str) -> None:
        """A place for this operation, which came with the drive that claimed the session."""
        asked = self._slots.get(operation_id)
        if self._closed or operation_id in self._running or (asked is not None and asked.granted):
            slot.give_back()
            return
        if asked is not None:
            # The session looked first, and got in line behind whoever waits for the place that is here.
            asked.give_back()
        slot.call = self._look
        self._slots[operation_id] = slot

    def forgive(self) -> None:
        """Try again at once what failed before."""
        self._trouble.clear()

    def poll_now(self, lane: str) -> None:
        """Poll the lane's background response without waiting for its time."""
        for operation in self._storage.open_operations():
            if operation.lane == lane and isinstance(operation.due, DuePoll):
                self._polls[operation.operation_id] = (operation.due, 0)

    async def start_due(self, now: int) -> int | None:
        """Start a pass for everything that is due and has a place, ask for places for the rest, stop
        waiting for what goes on though it was cancelled; returns when to look next (Unix ms)."""
        nearest: int | None = None
        # One that comes with a place while this call waits is looked at by the next.
        before, wanted = set(self._slots), set[str]()
        await self._acquit_who_moved_on()
        for operation in self._storage.open_operations():
            running = self._running.get(operation.operation_id)
            if running is not None:
                instant = self._given_up_at(running, operation, now)
                if instant is None:
                    continue
            else:
                instant = await self._instant(operation)
            if self._closed:
                return None
            if instant > now:
                nearest = instant if nearest is None else min(nearest, instant)
            elif self._may_start and now >= self._full_until:
                wanted.add(operation.operation_id)
                self._start_or_ask(operation, instant, now)
        for operation_id in before & self._slots.keys() - wanted:
            self._slots.pop(operation_id).give_back()
        return nearest

    @property
    def _may_start(self) -> bool:
        # A host that drains keeps a session only for what runs in it; while it does, it answers for
        # everything in it.
        return bool(self._running) or not self._services.draining()

    def _start_or_ask(self, operation: OpenOperation, instant: int, now: int) -> None:
        operation_id = operation.operation_id
        slot = self._slots.get(operation_id)
        if slot is None:
            slot = self._services.slots.ask(self._tenure.tenant_id, self._look)
            self._slots[operation_id] = slot
        if not slot.granted:
            return
        del self._slots[operation_id]
        suspect = self._suspects.get(operation_id)
        if suspect is not None:
            suspect.turn.begin()
        elif instant > 0 and operation_id not in self._trouble:
            self._services.meter.woke((now - instant) / 1000)
        begun = self._running[operation_id] = _Pass(slot, now, alone=suspect is not None)
        begun.task = asyncio.get_running_loop().create_task(self._drive(operation, begun))

    async def _instant(self, operation: OpenOperation) -> int:
        suspect = self._suspects.get(operation.operation_id)
        if suspect is not None:
            # It was due when it was told to wait.
            return suspect.turn.opens_at
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
                    try:
                        rows = await self._services.due_rows(self._tenure)
                    except StorageError as error:
                        # Nothing that runs here has to end for that.
                        logger.warning("the time of a poll is not known yet: %s", error)
                        return self._services.clock.now_ms() + _FULL_MS
                    known = (operation.due, rows.get(operation.operation_id, 0))
                    self._polls[operation.operation_id] = known
                return known[1]
            case _:
                assert_never(operation.due)

    def next_due(self) -> int | None:
        """When the first of the operations that are open is due, as far as is known here."""
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

    async def close(self) -> None:
        """Start no more, give the places back, and return when what ran has ended. The harness is
        closed or faulted by now, so that this is not long; it is not waited for longer than that may
        take."""
        self._closed = True
        self._services.tenants.leave(self._tenure.tenant_id, self._tenant_has_room)
        for slot in self._slots.values():
            slot.give_back()
        self._slots.clear()
        for operation_id in self._suspects.keys() - self._running.keys():
            self._acquit(operation_id)
        tasks = [running.task for running in self._running.values() if running.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=self._services.duty.close_ms / 1000)

    # One pass

    async def _drive(self, operation: OpenOperation, this: _Pass) -> None:
        only_about(
            tenant=self._tenure.tenant_id,
            session=self._tenure.session_id,
            lane=operation.lane,
            operation=operation.operation_id,
        )
        excused, reason = False, None
        try:
            await self._pass(operation, this)
            self._trouble.pop(operation.operation_id, None)
        except (DriveAbandoned, OperationCancelledByCaller):
            excused = True
        except (HarnessFault, HarnessClosed) as stopped:
            # The session ends, and says why.
            excused = is_excused(stopped, operation.lane)
            reason = str(stopped)
        except Exception as error:  # noqa: BLE001 -- a hook, or the database: the operation stays open
            reason = self._failed(operation.operation_id, error)
        finally:
            if this.counted and self._is_open(operation):
                await self._end(operation, excused=excused, reason=reason)
            del self._running[operation.operation_id]
            this.slot.give_back()
            if this.alone or self._closed:
                self._acquit(operation.operation_id)
            if not this.refused:
                self._services.over(self._tenure)
            self._look()

    async def _pass(self, operation: OpenOperation, this: _Pass) -> None:
        operation_id = operation.operation_id
        trouble = self._trouble.get(operation_id)
        reason = None if trouble is None else trouble.reason
        state_seq = await self._state_seq(operation_id)
        counted = await self._services.begins(self._tenure, operation, reason, this.alone)
        # One that is only to be given up need not wait for that.
        if isinstance(counted, Suspected) and counted.passes <= MOST_PASSES:
            turn = self._services.suspects.ask(self._tenure.tenant_id, self._look)
            self._suspects[operation_id] = _Suspect(turn, state_seq)
            if turn.opens_at > self._services.clock.now_ms():
                this.refused = True
                logger.info("operation %s is a suspect: it waits for its turn", operation_id)
                return
            # It begins in the place that it has. Others may wait for every place that is given back, and
            # then it would be sent here again and again and never begin.
            turn.begin()
            this.alone = True
            counted = await self._services.begins(self._tenure, operation, reason, this.alone)
        if isinstance(counted, TenantFull):
            this.refused = True
            self._full_until = self._services.clock.now_ms() + _FULL_MS
            self._services.tenants.wait(self._tenure.tenant_id, self._tenant_has_room)
            return
        # None: the row is lost, which the sweep repairs, or the operation is over, which the lane says.
        this.counted = isinstance(counted, PassCount)
        lane = await self._harness.lane(operation.lane, BACKGROUND)
        if lane is None:
            raise StorageError(f"operation {operation_id} has no lane {operation.lane!r}")
        if counted is not None and counted.passes > MOST_PASSES:
            await end_as_crash_loop(lane, operation_id, MOST_PASSES, counted.reason)
            return
        options = DriveOptions(operation_id, poll_deferred=operation.deferred)
        with self._services.traced(self._tenure, operation) as context:
            driven = await lane.drive(options, context.with_abort_signal(this.controller.signal))
        if isinstance(driven, Err):
            logger.debug("nothing to drive: %s", driven.error.message)

    def _tenant_has_room(self) -> None:
        self._full_until = 0
        self._look()

    async def _state_seq(self, operation_id: str) -> int | None:
        stored = await self._storage.get_value(operation_state(operation_id), BACKGROUND)
        return None if stored is None else stored.seq

    async def _acquit_who_moved_on(self) -> None:
        # The count of its passes begins again, or it is over: nobody has to wait for it any longer, and
        # it for nobody.
        for operation_id, suspect in list(self._suspects.items()):
            if await self._state_seq(operation_id) != suspect.state_seq:
                self._acquit(operation_id)

    def _acquit(self, operation_id: str) -> None:
        suspect = self._suspects.pop(operation_id, None)
        if suspect is not None:
            suspect.turn.give_back()

    def _is_open(self, operation: OpenOperation) -> bool:
        return any(
            still.operation_id == operation.operation_id
            for still in self._storage.open_operations()
        )

    async def _end(self, operation: OpenOperation, *, excused: bool, reason: str | None) -> None:
        try:
            await self._services.ends(self._tenure, operation, excused, reason)
        except StorageError as error:
            logger.debug("a pass of operation %s stays counted: %s", operation.operation_id, error)

    def _given_up_at(self, running: _Pass, operation: OpenOperation, now: int) -> int | None:
        """When to stop waiting for what goes on although its operation was cancelled: a tool that does
        not listen, for one. Stops waiting when that is now. The next pass settles it as unknown; what
        it returns after that goes nowhere."""
        if operation.cancelled_at is None or running.controller.signal.aborted:
            return None
        instant = max(operation.cancelled_at, running.began) + self._services.duty.abort_ms
        if instant > now:
            return instant
        logger.warning(
            "operation %s goes on %d ms after its cancellation: it is not waited for any longer",
            operation.operation_id,
            now - operation.cancelled_at,
        )
        running.controller.abort()
        return None

    def _failed(self, operation_id: str, error: Exception) -> str:
        trouble = self._trouble.get(operation_id)
        failures = 1 if trouble is None else trouble.failures + 1
        pause = min(_BACKOFF_MS << min(failures - 1, 16), _BACKOFF_LONGEST_MS)
        reason = f"{type(error).__name__}: {error}"
        # What a hook says may quote a prompt: the reason is kept with the operation, not in the log.
        logger.warning("a pass of operation %s failed: %s", operation_id, type(error).__name__)
        self._trouble[operation_id] = _Trouble(
            failures, self._services.clock.now_ms() + pause, reason
        )
        return reason
