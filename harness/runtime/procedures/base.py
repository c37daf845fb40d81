"""What every procedure of a drive pass uses: guarded commits, gated hooks, time and ids (§4.1, §4.3)."""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar, cast

from harness.context import Context
from harness.entries import Entry, MessageEntry
from harness.errors import InvariantDefect, StorageCorrupt
from harness.ids import timestamp_of
from harness.messages import AgentMessage, AssistantMessage, ToolCall, ToolResultMessage
from harness.operation import values
from harness.operation.events import HarnessEvent, QueuedItem
from harness.operation.payloads import PendingEntry, PendingMessage
from harness.operation.state import Operation, RunState
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions.acceptance import QueuedPayload
from harness.operation.transitions.queues import QueueContents
from harness.runtime.core import Core
from harness.runtime.drive import Drive
from harness.runtime.gate import AbortRequested, Gate, OperationEnded
from harness.runtime.lane import Commit, Decision, Lane, Plan
from harness.session.session import SessionMutator
from harness.storage.address import AnyValue
from harness.telemetry import (
    NOOP_TELEMETRY,
    AttributeName,
    Attributes,
    AttributeValue,
    SpanName,
    TelemetryContext,
)

T = TypeVar("T")


class _Ending:
    """What a span will say when it ends."""

    __slots__ = ("attributes", "error")

    def __init__(self) -> None:
        self.attributes: dict[AttributeName, AttributeValue] = {}
        self.error: str | None = None


class DrivePass:
    """One pass over one operation. Holds no durable state; `current()` is always the projection."""

    def __init__(self, core: Core, lane: Lane, drive: Drive) -> None:
        self.core = core
        self.lane = lane
        self.drive = drive
        self.context = drive.context
        self._ending = _Ending()

    @property
    def gate(self) -> Gate:
        """Admission of this pass's effects."""
        return self.drive.gate

    @property
    def operation_id(self) -> str:
        """The operation that this pass may touch."""
        return self.drive.operation_id

    def now(self) -> int:
        """Unix milliseconds."""
        return self.core.environment.clock.now_ms()

    def new_id(self) -> str:
        """A fresh id."""
        return self.core.environment.ids.next()

    def follower(self, leader_id: str) -> str:
        """An id that carries the leader's time prefix (§1.2)."""
        return self.core.environment.ids.next(timestamp_of(leader_id))

    def current(self) -> Operation:
        """The operation as projected now; raises `OperationEnded` when it is not ours any more."""
        operation = self.lane.projection.operation
        if operation is None or operation.id != self.operation_id:
            raise OperationEnded("the operation is over")
        return operation

    def run(self) -> RunState:
        """The run's state as projected now."""
        state = self.current().state
        if not isinstance(state, RunState):
            raise InvariantDefect("this procedure belongs to a run")
        return state

    async def transition(self, plan: Plan[T], *, cancelled_ok: bool = False) -> T:
        """Commit a drive-owned transition.

        Raises `OperationEnded` when ownership is lost and, unless `cancelled_ok`, `AbortRequested`
        when cancellation is durable; nothing is written then.
        """
        return await self.lane.command(
            self.guarded(plan, cancelled_ok=cancelled_ok), self.context, drive=self.drive
        )

    async def step(
        self, decide: Callable[[LaneProjection], Step], *, cancelled_ok: bool = False
    ) -> None:
        """Commit the step that a pure decision returns."""

        def plan(
            projection: LaneProjection, mutator: SessionMutator, context: Context
        ) -> Decision[None]:
            return Commit(decide(projection), None)

        await self.transition(plan, cancelled_ok=cancelled_ok)

    def guarded(self, plan: Plan[T], *, cancelled_ok: bool) -> Plan[T]:
        """The plan behind the checks that every drive-owned write repeats (§3.4)."""

        def inner(
            projection: LaneProjection, mutator: SessionMutator, context: Context
        ) -> Decision[T] | Awaitable[Decision[T]]:
            operation = projection.operation
            if operation is None or operation.id != self.operation_id:
                raise OperationEnded("the operation is over")
            if operation.cancelling and not cancelled_ok:
                durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                durable.set_result(None)
                raise AbortRequested(durable)
            return plan(projection, mutator, context)

        return inner

    async def hook(self, pipeline: Callable[[Context], Awaitable[T]]) -> T:
        """Run one complete hook pipeline as one admitted effect (§5.6)."""
        return await self.gate.admit(lambda: pipeline(self.context))

    def below(self, telemetry: TelemetryContext) -> DrivePass:
        """A view of this pass whose spans, writes and events hang below `telemetry`."""
        inner = copy.copy(self)
        inner.context = self.context.with_telemetry(telemetry)
        return inner

    @contextmanager
    def span(self, name: SpanName, attributes: Attributes) -> Generator[DrivePass]:
        """A view of this pass whose context is a child span; the span ends with the block (§5.8)."""
        if self.context.telemetry is NOOP_TELEMETRY:
            yield self
            return
        span = self.context.telemetry.start(name, {**self.identity, **attributes})
        inner = self.below(span.context)
        ending = inner._ending = _Ending()
        try:
            yield inner
        except BaseException as error:
            span.end(ending.attributes, error=type(error).__name__)
            raise
        span.end(ending.attributes, error=ending.error)

    def conclude(self, attributes: Attributes, *, error: str | None = None) -> None:
        """Say what the innermost `span` of this view ends with; `error` is a class or a code."""
        self._ending.attributes.update(attributes)
        self._ending.error = error

    @property
    def identity(self) -> Attributes:
        """The attributes that every span of this pass carries."""
        return {
            "pi.session.id": self.core.session.id,
            "pi.lane.name": self.lane.name,
            "pi.operation.id": self.operation_id,
        }

    async def emit(self, *events: HarnessEvent) -> None:
        """Report process-local lifecycle."""
        if self.core.events.listened:
            await self.lane.emit(events, self.context)

    async def deterministic(self, compute: Callable[[], T | Awaitable[T]]) -> T:
        """Run application computation that must not fail; a failure faults the harness (§4.8)."""
        try:
            result = compute()
            if inspect.isawaitable(result):
                return await cast("Awaitable[T]", result)
            return cast("T", result)  # T is never awaitable: callers compute plain values
        except Exception as error:
            raise self.core.fault(error, self.context, self.lane.name) from error

    # Dereferencing what the projection names

    async def assistant(self, entry_id: str) -> AssistantMessage:
        """The assistant message of an entry that state names."""
        entry = (await self.lane.find_entries([entry_id], self.context)).get(entry_id)
        return assistant_of(entry, entry_id)

    async def final_assistant(self) -> AssistantMessage | None:
        """The newest settled assistant message of the run."""
        entry_id = self.run().latest_assistant_entry_id
        return None if entry_id is None else await self.assistant(entry_id)

    async def owned_addresses(self, mutator: SessionMutator, context: Context) -> list[AnyValue]:
        """Everything under the operation's cleanup prefixes (§3.13)."""
        return await owned_addresses(self.operation_id, mutator, context)

    def ended(self) -> bool:
        """Whether the operation is no longer the lane's current one."""
        operation = self.lane.projection.operation
        return operation is None or operation.id != self.operation_id


async def owned_addresses(
    operation_id: str, mutator: SessionMutator, context: Context
) -> list[AnyValue]:
    """Everything under an operation's cleanup prefixes (§3.13)."""
    found: list[AnyValue] = []
    for prefix in (
        values.operation_tool_args_prefix(operation_id),
        values.operation_tool_memo_prefix(operation_id),
        values.operation_preparation_prefix(operation_id),
        values.pending_tool_output_prefix(operation_id),
    ):
        # Any: the prefixes carry different value types; only addresses are used here.
        erased = cast("AnyValue", prefix)
        found += [stored.address for stored in await mutator.scan_values(erased, context)]
    return found


def assistant_of(entry: Entry | None, entry_id: str) -> AssistantMessage:
    """The assistant message of an entry; anything else is corruption."""
    if not isinstance(entry, MessageEntry) or not isinstance(entry.message, AssistantMessage):
        raise StorageCorrupt(f"entry {entry_id} is not an assistant response")
    return entry.message


def source_call(message: AssistantMessage, source_index: int) -> ToolCall:
    """The tool call at a content index; anything else is corruption."""
    if source_index >= len(message.content):
        raise StorageCorrupt(f"content index {source_index} is outside the assistant message")
    block = message.content[source_index]
    if not isinstance(block, ToolCall):
        raise StorageCorrupt(f"content index {source_index} is not a tool call")
    return block


async def read_pending(mutator: SessionMutator, entry_id: str, context: Context) -> PendingEntry:
    """A pending payload that state names; its absence is corruption."""
    stored = await mutator.get_value(values.pending_entry(entry_id), context)
    if stored is None:
        raise StorageCorrupt(f"pending entry {entry_id} is missing")
    return stored.value


async def read_queue(
    mutator: SessionMutator, ids: tuple[str, ...], context: Context
) -> tuple[QueuedPayload, ...]:
    """Queued items with their payloads."""
    return tuple(
        [
            QueuedPayload(entry_id, await read_pending(mutator, entry_id, context))
            for entry_id in ids
        ]
    )


def message_of(payload: PendingEntry, entry_id: str) -> AgentMessage:
    """The message of a queued payload; a custom entry in a message queue is corruption."""
    if not isinstance(payload, PendingMessage):
        raise StorageCorrupt(f"queued entry {entry_id} is not a message")
    return payload.payload


async def queue_items(
    mutator: SessionMutator, ids: tuple[str, ...], context: Context
) -> tuple[QueuedItem, ...]:
    """Queued messages for display."""
    return tuple(
        QueuedItem(entry_id=item.entry_id, message=message_of(item.payload, item.entry_id))
        for item in await read_queue(mutator, ids, context)
    )


async def queue_contents(
    projection: LaneProjection,
    mutator: SessionMutator,
    context: Context,
    *,
    wanted: bool,
    without: frozenset[str] = frozenset(),
) -> QueueContents:
    """All queues as they stand, less `without`; empty when nobody is `wanted` to see them."""
    if not wanted:
        return (), (), ()
    operation = projection.operation
    steer: tuple[str, ...] = ()
    follow_up: tuple[str, ...] = ()
    if operation is not None and isinstance(operation.state, RunState):
        steer = operation.state.inbox.steer
        follow_up = operation.state.inbox.follow_up

    async def items(ids: tuple[str, ...]) -> tuple[QueuedItem, ...]:
        kept = tuple(entry_id for entry_id in ids if entry_id not in without)
        return await queue_items(mutator, kept, context)

    return (
        await items(steer),
        await items(follow_up),
        await items(projection.state.pending_next_run),
    )


def tool_result_of(payload: PendingEntry, entry_id: str) -> ToolResultMessage:
    """The staged result of a call; anything else is corruption."""
    if not isinstance(payload, PendingMessage) or not isinstance(
        payload.payload, ToolResultMessage
    ):
        raise StorageCorrupt(f"staged outcome {entry_id} is not a tool result")
    return payload.payload
