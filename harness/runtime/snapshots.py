"""Captures a lane as a display needs it, on the lane's line, without gap or duplicate (§5.4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import msgspec

from harness.codec import JsonValue
from harness.context import Context
from harness.entries import Entry, EntryType
from harness.errors import StorageCorrupt
from harness.messages import AssistantMessage, DeferredHandle
from harness.operation import values
from harness.operation.events import HarnessEvent, reaches_lane
from harness.operation.payloads import PendingCustom, PendingMessage
from harness.operation.results import (
    CurrentOperation,
    DeferredInfo,
    DrainedItems,
    LaneSnapshot,
    OperationSnapshot,
    OperationStatus,
    PendingWrite,
    QueueContents,
    RetryInfo,
    RunningTool,
)
from harness.operation.state import (
    AssistantPhase,
    CallPending,
    CancelRequested,
    CompactionState,
    DeferredPhase,
    Generating,
    GenerationRetryWait,
    Inbox,
    NavigationState,
    Operation,
    RunState,
    SummaryRetryWait,
    ToolsPhase,
)
from harness.operation.step import LaneProjection
from harness.operation.transitions.structural import structural_of
from harness.runtime.events import EventBus, EventListener, isolated
from harness.runtime.lane import Decision, Decline, Lane
from harness.runtime.procedures.base import (
    assistant_of,
    queue_items,
    read_pending,
    source_call,
)
from harness.runtime.procedures.streaming import pending_response, read_frames
from harness.session.session import SessionMutator
from harness.settings import ModelIdentity
from harness.storage.protocol import BranchScan


class Watch:
    """A snapshot and the events after it. Events are kept until `start`, then delivered live."""

    def __init__(self, bus: EventBus, wants: Callable[[HarnessEvent], bool]) -> None:
        self._buffer: list[tuple[HarnessEvent, Context]] = []
        self._listener: EventListener | None = None
        self._remove = bus.subscribe(self._receive, wants)

    async def _receive(self, event: HarnessEvent, context: Context) -> None:
        if self._listener is None:
            self._buffer.append((event, context))
            return
        outcome = self._listener(event, context)
        if outcome is not None:
            await outcome

    async def start(self, listener: EventListener) -> None:
        """Deliver what was kept, in order, then live events."""
        while self._buffer:
            event, context = self._buffer.pop(0)
            outcome = listener(event, context)
            if outcome is not None:
                await outcome
        self._listener = listener

    def unsubscribe(self) -> None:
        """Stop watching and drop what was kept."""
        self._remove()
        self._buffer.clear()


class LaneWatch(Watch):
    """A watch of one lane."""

    snapshot: LaneSnapshot


async def watch_lane(lane: Lane, context: Context) -> LaneWatch:
    """Register and capture in one job on the lane's line."""
    registered: list[LaneWatch] = []

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[LaneWatch]:
        # Registration and the clone of live fields happen with no await in between.
        watch = LaneWatch(lane.core.events, lambda event: reaches_lane(event, lane.name))
        registered.append(watch)
        live = _live_fields(lane)
        watch.snapshot = await capture(lane, projection, live, mutator, inner)
        return Decline(watch)

    try:
        return await lane.command(plan, context)
    except BaseException:
        for watch in registered:
            watch.unsubscribe()
        raise


LiveFields = tuple[AssistantMessage | None, dict[str, RunningTool], bool]


def _live_fields(lane: Lane) -> LiveFields:
    partial = lane.live.partial.message() if lane.live.partial is not None else None
    return isolated(partial), isolated(lane.live.running), lane.drive is not None


async def capture(
    lane: Lane,
    projection: LaneProjection,
    live: LiveFields,
    mutator: SessionMutator,
    context: Context,
) -> LaneSnapshot:
    """Assemble the snapshot at this point of the line; raises `StorageCorrupt` on broken references."""
    transcript: list[Entry] = []
    if projection.leaf_id is not None:
        transcript = await mutator.scan_branch(
            BranchScan(start=projection.leaf_id, order="newestFirst", stop_at_type="compaction"),
            context,
        )
        transcript.reverse()
    operation = projection.operation
    inbox: Inbox | None = None
    if operation is not None and isinstance(operation.state, RunState):
        inbox = operation.state.inbox
    queues = QueueContents(
        steer=await queue_items(mutator, () if inbox is None else inbox.steer, context),
        follow_up=await queue_items(mutator, () if inbox is None else inbox.follow_up, context),
        next_run=await queue_items(mutator, projection.state.pending_next_run, context),
    )
    writes = [
        await _pending_write(mutator, entry_id, context)
        for entry_id in (() if inbox is None else inbox.writes)
    ]
    return LaneSnapshot(
        lane=projection.lane,
        transcript=isolated(tuple(transcript)),
        leaf_id=projection.leaf_id,
        operation=None
        if operation is None
        else await _operation(projection, operation, live, mutator, context),
        queues=isolated(queues),
        pending_writes=isolated(tuple(writes)),
        faulted=lane.core.faulted is not None,
        last_result=projection.last_result,
    )


async def _pending_write(mutator: SessionMutator, entry_id: str, context: Context) -> PendingWrite:
    pending = await read_pending(mutator, entry_id, context)
    match pending:
        case PendingMessage(payload=message):
            return PendingWrite(entry_id=entry_id, type="message", message=message)
        case PendingCustom(custom_type=custom_type, payload=payload):
            kind: EntryType = "custom"
            data: JsonValue = None if payload is msgspec.UNSET else payload
            return PendingWrite(entry_id=entry_id, type=kind, custom_type=custom_type, data=data)
        case _:
            assert_never(pending)


def status_of(operation: Operation, *, owned: bool) -> OperationStatus:
    """The process-relative status of an open operation (§4.1)."""
    if operation.cancelling:
        return "aborting"
    return "running" if owned else "open"


async def _operation(
    projection: LaneProjection,
    operation: Operation,
    live: LiveFields,
    mutator: SessionMutator,
    context: Context,
) -> OperationSnapshot:
    partial, running, owned = live
    drained: DrainedItems | None = None
    control = operation.state.control
    if isinstance(control, CancelRequested) and isinstance(operation.state, RunState):
        drained = DrainedItems(
            steer=await queue_items(mutator, control.drained_steer, context),
            follow_up=await queue_items(mutator, control.drained_follow_up, context),
        )
    response = pending_response(projection)
    if partial is None and response is not None:
        partial = await read_frames(mutator, operation.id, response[1], context)
    return OperationSnapshot(
        id=operation.id,
        kind=operation.kind,
        started_at=operation.meta.started_at,
        status=status_of(operation, owned=owned),
        retry=_retry(operation),
        deferred=await _deferred(operation, mutator, context),
        drained=drained,
        streaming_message=partial if response is not None else None,
        running_tools=await _running_tools(operation, running, mutator, context),
    )


def _retry(operation: Operation) -> RetryInfo | None:
    state = operation.state
    wait: GenerationRetryWait | SummaryRetryWait | None = None
    if isinstance(state, RunState) and isinstance(state.phase, AssistantPhase):
        if isinstance(state.phase.generation, GenerationRetryWait):
            wait = state.phase.generation
    else:
        structural = structural_of(state)
        if isinstance(structural, Generating) and isinstance(
            structural.generation, SummaryRetryWait
        ):
            wait = structural.generation
    if wait is None:
        return None
    return RetryInfo(
        attempt=wait.next_attempt,
        max_attempts=wait.context.retry_policy.max_attempts,
        next_attempt_at=wait.not_before,
    )


async def _deferred(
    operation: Operation, mutator: SessionMutator, context: Context
) -> DeferredInfo | None:
    state = operation.state
    if not isinstance(state, RunState) or not isinstance(state.phase, DeferredPhase):
        return None
    current = state.phase.deferred
    source = current.source_entry_id
    message = assistant_of((await mutator.get_entries([source], context)).get(source), source)
    handle: DeferredHandle | None = message.deferred
    if handle is None:
        raise StorageCorrupt(f"deferred source {source} has no handle")
    return DeferredInfo(handle=handle, poll=current.poll)


async def _running_tools(
    operation: Operation,
    live: dict[str, RunningTool],
    mutator: SessionMutator,
    context: Context,
) -> tuple[RunningTool, ...]:
    state = operation.state
    if not isinstance(state, RunState) or not isinstance(state.phase, ToolsPhase):
        return ()
    batch = state.phase.batch
    pending = [call for call in batch.calls if isinstance(call, CallPending)]
    if not pending:
        return ()
    entry_id = batch.assistant_entry_id
    message = assistant_of((await mutator.get_entries([entry_id], context)).get(entry_id), entry_id)
    found: list[RunningTool] = []
    for call in pending:
        source = source_call(message, call.source_index)
        shown = live.get(call.result_entry_id)
        if shown is None:
            arguments = await mutator.get_value(
                values.operation_tool_args(operation.id, batch.turn_id, call.source_index), context
            )
            if arguments is None:
                raise StorageCorrupt(f"the arguments of call {call.result_entry_id} are missing")
            checkpoint = await mutator.get_value(
                values.pending_tool_output(operation.id, call.result_entry_id), context
            )
            shown = RunningTool(
                tool_call_id=source.id,
                tool_name=source.name,
                args=arguments.value,
                partial_result=None if checkpoint is None else checkpoint.value,
            )
        found.append(shown)
    return tuple(found)


def captured_model(operation: Operation) -> ModelIdentity | None:
    """The model identity that the current step captured, if its phase carries one."""
    state = operation.state
    match state:
        case RunState(phase=AssistantPhase(generation=generation)):
            return generation.context.configuration.model
        case RunState(phase=ToolsPhase(batch=batch)):
            return batch.configuration.model
        case RunState(phase=DeferredPhase(deferred=current)):
            return current.configuration.model
        case RunState() | CompactionState() | NavigationState():
            structural = structural_of(state)
            if isinstance(structural, Generating):
                return structural.generation.context.configuration.model
            return None
        case _:
            assert_never(state)


def current_operation(operation: Operation | None, *, owned: bool) -> CurrentOperation | None:
    """The public description of an open operation."""
    if operation is None:
        return None
    return CurrentOperation(
        id=operation.id,
        kind=operation.kind,
        started_at=operation.meta.started_at,
        status=status_of(operation, owned=owned),
        captured_model=captured_model(operation),
    )
