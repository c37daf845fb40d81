"""A lane's owner: the authoritative projection, the commands that change it, the drive on it (§4.3)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from harness.context import Context
from harness.entries import Entry, place
from harness.errors import (
    HarnessClosed,
    HarnessError,
    HarnessFault,
    InvariantDefect,
    OperationCancelledByCaller,
    StorageError,
)
from harness.frames import PartialMessage
from harness.messages import AgentToolResult, ToolResultMessage
from harness.operation.events import HarnessEvent
from harness.operation.results import RunningTool
from harness.operation.step import LaneProjection, Step, realize
from harness.runtime.core import Core
from harness.runtime.drive import Drive
from harness.runtime.gate import OperationEnded
from harness.session.line import observe
from harness.session.projection import LiveContext
from harness.session.session import SessionMutator
from harness.storage.protocol import CommitResult
from harness.storage.writes import InsertEntry, Write
from harness.usage import ZERO_USAGE

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Commit(Generic[T_co]):
    """Commit this step; `value` is returned.

    `events` adds what only the commit result can tell; `committed` runs in the continuation of the
    commit, before events are bound.
    """

    step: Step
    value: T_co
    events: Callable[[CommitResult], Sequence[HarnessEvent]] | None = None
    committed: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True)
class Auxiliary(Generic[T_co]):
    """Commit writes that change neither projection nor tree (frames, checkpoints, memos)."""

    writes: tuple[Write, ...]
    value: T_co


@dataclass(frozen=True, slots=True)
class Decline(Generic[T_co]):
    """Commit nothing; `value` is returned."""

    value: T_co


Decision: TypeAlias = Commit[T] | Auxiliary[T] | Decline[T]
Plan: TypeAlias = Callable[
    [LaneProjection, SessionMutator, Context], "Decision[T] | Awaitable[Decision[T]]"
]


class LiveView:
    """Presentation of work in progress; display only, never consulted by a decision."""

    def __init__(self) -> None:
        self.partial: PartialMessage | None = None
        self.running: dict[str, RunningTool] = {}

    def tool_progress(self, invocation_id: str, partial: AgentToolResult) -> None:
        """Remember a running tool's latest update."""
        tool = self.running.get(invocation_id)
        if tool is not None:
            self.running[invocation_id] = RunningTool(
                tool_call_id=tool.tool_call_id,
                tool_name=tool.tool_name,
                args=tool.args,
                partial_result=partial,
            )

    def clear(self) -> None:
        """Forget everything."""
        self.partial = None
        self.running = {}


class _OwnedByCallback(HarnessError):
    """The command would write while an idle callback owns the lane; `ended` says when to repeat it."""

    def __init__(self, ended: asyncio.Future[None]) -> None:
        super().__init__("an idle callback owns the lane")
        self.ended = ended


class Lane:
    """One lane of an attached session. Every state change of it is a command on its line."""

    def __init__(self, core: Core, projection: LaneProjection) -> None:
        self.core = core
        self.name = projection.lane
        self.projection = projection
        self.drive: Drive | None = None
        self.live = LiveView()
        self.context = LiveContext(empty=projection.leaf_id is None)
        self.staged: dict[str, ToolResultMessage] = {}
        self.open_turn: str | None = None
        self.open_structural: str | None = None
        # Ends with the idle callback that owns the lane, if one does.
        self._callback: asyncio.Future[None] | None = None
        self._idle_waiters: list[asyncio.Future[None]] = []

    def submit(
        self, plan: Plan[T], context: Context, *, drive: Drive | None = None
    ) -> asyncio.Future[tuple[T, asyncio.Future[None] | None]]:
        """Queue a command now. The future gives its value and the delivery of its events.

        With `drive`, the commit is admitted only while that exact drive owns the lane; otherwise
        `OperationEnded` is raised and nothing is written.
        """

        async def job(
            mutator: SessionMutator, inner: Context
        ) -> tuple[T, asyncio.Future[None] | None]:
            self.core.check()
            try:
                decision = plan(self.projection, mutator, inner)
                if inspect.isawaitable(decision):
                    decision = await decision
            except (InvariantDefect, StorageError) as error:
                raise self.core.fault(error, inner, self.name) from error
            if isinstance(decision, Decline):
                return decision.value, None
            if self._callback is not None:
                raise _OwnedByCallback(self._callback)
            if drive is not None and self.drive is not drive:
                raise OperationEnded("another owner drives this lane now")
            writes = decision.step.writes if isinstance(decision, Commit) else decision.writes
            try:
                result = await mutator.commit(writes, inner)
            except HarnessClosed:
                raise
            except Exception as error:
                raise self.core.fault(error, inner, self.name) from error
            if isinstance(decision, Auxiliary):
                return decision.value, None
            return decision.value, self._published(decision, result, inner)

        future = self.core.session.enqueue(self.name, job, context)
        # A caller that goes away while its job waits leaves the job's failure to nobody.
        observe(future)
        return future

    async def command(self, plan: Plan[T], context: Context, *, drive: Drive | None = None) -> T:
        """Run a command and wait for its commit and for the delivery of its events.

        While an idle callback owns the lane, whatever would write waits for its end (§5.1).
        """
        while True:
            submitted = self.submit(plan, context, drive=drive)
            try:
                value, delivery = await until_cancelled(submitted, context)
                break
            except _OwnedByCallback as owned:
                await until_cancelled(owned.ended, context)
        if delivery is not None:
            await asyncio.shield(delivery)
        return value

    def _published(
        self, commit: Commit[T], result: CommitResult, context: Context
    ) -> asyncio.Future[None] | None:
        # The order matters: projection, context, then events, with no await in between (§5.4).
        step = commit.step
        was_open = self.projection.operation is not None
        moved = step.projection.leaf_id != self.projection.leaf_id
        self.projection = step.projection
        self._follow(step, result, moved)
        totals = self.core.session.totals or ZERO_USAGE
        events, totals = realize(step, result, totals)
        self.core.session.totals = totals
        if commit.events is not None:
            events = (*events, *commit.events(result))
        if commit.committed is not None:
            commit.committed()
        if was_open and step.projection.operation is None:
            self.live.clear()
            self.staged.clear()
            self.open_turn = None
            self.open_structural = None
            self._wake_idle()
        return self.core.events.emit_batch(events, context)

    def _follow(self, step: Step, result: CommitResult, moved: bool) -> None:
        placed = [
            place(
                write.entry.payload,
                id=write.entry.id,
                parent_id=write.entry.parent_id,
                seq=seq,
                timestamp=result.timestamp,
            )
            for write, seq in zip(step.writes, result.seqs, strict=True)
            if isinstance(write, InsertEntry)
        ]
        for entry in placed:
            self.context.appended(entry)
        if moved and not placed:
            self.context.forget()

    async def emit(self, events: Sequence[HarnessEvent], context: Context) -> None:
        """Report process-local lifecycle and wait for its listeners."""
        await self.core.events.emit(events, context)

    async def context_entries(self, context: Context) -> list[Entry]:
        """The entries of the current context, oldest first."""
        return await self.context.entries(
            self.core.session.storage, self.projection.leaf_id, context
        )

    async def find_entries(self, ids: Sequence[str], context: Context) -> dict[str, Entry]:
        """Entries by id, from the live context where possible."""
        found = await self.context.find(
            self.core.session.storage, self.projection.leaf_id, ids, context
        )
        missing = [entry_id for entry_id in ids if entry_id not in found]
        if missing:
            found.update(await self.core.session.storage.get_entries(missing, context))
        return found

    # Drive ownership

    def remove_drive(self, drive: Drive) -> None:
        """Free the lane when `drive` still owns it."""
        if self.drive is drive:
            self.drive = None
            self.live.clear()
        if not drive.left.done():
            drive.left.set_result(None)

    def abandon(self, drive: Drive, error: BaseException) -> None:
        """End a pass at once; what it still does can no longer write."""
        drive.close_gate(error)
        drive.fail(error)
        self.remove_drive(drive)
        if drive.task is not None:
            drive.task.cancel()

    def stop(self, error: HarnessFault | HarnessClosed) -> None:
        """End the pass and every waiter because the harness stops."""
        if self.drive is not None:
            self.abandon(self.drive, error)
        for waiter in self._idle_waiters:
            if not waiter.done():
                waiter.set_exception(error)
        self._idle_waiters = []

    # Idleness

    @property
    def is_idle(self) -> bool:
        """No open operation and no idle callback."""
        return self.projection.operation is None and self._callback is None

    def idle_waiter(self) -> asyncio.Future[None]:
        """A future that resolves at the next idleness."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle_waiters.append(waiter)
        return waiter

    def own_idleness(self) -> None:
        """An idle callback begins; until it ends, nothing else writes to the lane."""
        self._callback = asyncio.get_running_loop().create_future()

    def release_idleness(self) -> None:
        """The idle callback ended."""
        if self._callback is not None:
            self._callback.set_result(None)
        self._callback = None
        self._wake_idle()

    async def callback_ended(self) -> None:
        """Return when no idle callback owns the lane; one that runs cannot be stopped (§5.1)."""
        while self._callback is not None:
            await asyncio.shield(self._callback)

    def _wake_idle(self) -> None:
        if not self.is_idle:
            return
        waiters, self._idle_waiters = self._idle_waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


async def until_cancelled(future: asyncio.Future[T], context: Context) -> T:
    """Await admitted work; a cancelled context ends the waiting, never the work (§5.8)."""
    signal = context.abort_signal
    if signal is None:
        return await asyncio.shield(future)
    if signal.aborted and not future.done():
        observe(future)
        raise OperationCancelledByCaller
    loop = asyncio.get_running_loop()
    cancelled: asyncio.Future[None] = loop.create_future()

    def pull() -> None:
        if not cancelled.done():
            cancelled.set_result(None)

    remove = signal.on_abort(pull)
    try:
        await asyncio.wait((future, cancelled), return_when=asyncio.FIRST_COMPLETED)
    finally:
        remove()
        cancelled.cancel()
    if future.done():
        return future.result()
    observe(future)
    raise OperationCancelledByCaller
