"""Transitions of the queues: enqueue, cancel, deferred tree writes, the durable abort marker (§3.11, §4.6)."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

import msgspec

from harness.entries import (
    BranchSummaryPayload,
    CompactionPayload,
    CustomPayload,
    EntryPayload,
    EntryType,
    MessagePayload,
    payload_type,
)
from harness.errors import InvariantDefect
from harness.messages import AgentMessage
from harness.operation import values
from harness.operation.events import QueuedItem, QueueUpdate, RunAbort, WritePending
from harness.operation.lane_state import LaneState
from harness.operation.payloads import PendingCustom, PendingEntry, PendingMessage
from harness.operation.state import CancelRequested, Operation, OperationState, RunState
from harness.operation.step import Draft, LaneProjection, Step, change_run, run_state
from harness.operation.transitions.acceptance import payload_of_pending

RunQueue: TypeAlias = Literal["steer", "follow_up"]
QueueContents: TypeAlias = tuple[
    tuple[QueuedItem, ...], tuple[QueuedItem, ...], tuple[QueuedItem, ...]
]


def takes_input(projection: LaneProjection) -> bool:
    """Whether a running run accepts steering and follow-ups."""
    operation = projection.operation
    return (
        operation is not None and isinstance(operation.state, RunState) and not operation.cancelling
    )


def enqueue(
    projection: LaneProjection,
    queue: RunQueue,
    entry_id: str,
    message: AgentMessage,
    queues: QueueContents,
) -> Step:
    """Queue a message for the open run. `queues` are the contents after this."""
    _, state = run_state(projection)
    draft = Draft(projection)
    draft.set(values.pending_entry(entry_id), PendingMessage(payload=message))
    inbox = msgspec.structs.replace(
        state.inbox, **{queue: (*getattr(state.inbox, queue), entry_id)}
    )
    draft.state(change_run(state, inbox=inbox))
    draft.event(_queue_update(projection, queues))
    return draft.build()


def enqueue_next_run(
    projection: LaneProjection, entry_id: str, message: AgentMessage, queues: QueueContents
) -> Step:
    """Queue a message for the lane's next run."""
    draft = Draft(projection)
    draft.set(values.pending_entry(entry_id), PendingMessage(payload=message))
    draft.lane_state(
        LaneState(
            current_operation_id=projection.state.current_operation_id,
            pending_next_run=(*projection.state.pending_next_run, entry_id),
        )
    )
    draft.event(_queue_update(projection, queues))
    return draft.build()


def queued_in(projection: LaneProjection, entry_id: str) -> str | None:
    """Which queue holds the item: steer, follow_up, writes or next_run."""
    if entry_id in projection.state.pending_next_run:
        return "next_run"
    operation = projection.operation
    if operation is not None and isinstance(operation.state, RunState):
        inbox = operation.state.inbox
        for name in ("steer", "follow_up", "writes"):
            if entry_id in getattr(inbox, name):
                return name
    return None


def cancel_queued(
    projection: LaneProjection, queue: str, entry_id: str, queues: QueueContents
) -> Step:
    """Remove a queued item and its content."""
    draft = Draft(projection)
    if queue == "next_run":
        draft.lane_state(
            LaneState(
                current_operation_id=projection.state.current_operation_id,
                pending_next_run=tuple(
                    i for i in projection.state.pending_next_run if i != entry_id
                ),
            )
        )
    else:
        _, state = run_state(projection)
        remaining = tuple(i for i in getattr(state.inbox, queue) if i != entry_id)
        draft.state(
            change_run(state, inbox=msgspec.structs.replace(state.inbox, **{queue: remaining}))
        )
    draft.delete(values.pending_entry(entry_id))
    if queue != "writes":
        draft.event(_queue_update(projection, queues))
    return draft.build()


def append_now(projection: LaneProjection, entry_id: str, payload: EntryPayload) -> Step:
    """Append to the tree of an idle lane."""
    draft = Draft(projection)
    draft.entry(entry_id, payload, lifecycle=True)
    draft.leaf_write()
    return draft.build()


def defer_write(projection: LaneProjection, entry_id: str, pending: PendingEntry) -> Step:
    """Keep a tree write for the run's next checkpoint; it survives an abort."""
    operation, state = run_state(projection)
    draft = Draft(projection)
    draft.set(values.pending_entry(entry_id), pending)
    inbox = msgspec.structs.replace(state.inbox, writes=(*state.inbox.writes, entry_id))
    draft.state(change_run(state, inbox=inbox))
    kind: EntryType = payload_type(payload_of_pending(pending))
    draft.event(
        WritePending(lane=projection.lane, run_id=operation.id, entry_id=entry_id, entry_type=kind)
    )
    return draft.build()


def request_cancel(
    projection: LaneProjection,
    requested_at: int,
    drained: tuple[tuple[AgentMessage, ...], tuple[AgentMessage, ...]],
    next_run: tuple[QueuedItem, ...],
) -> Step:
    """Make cancellation durable; a run's queued input is drained but its content kept (§4.6)."""
    operation = projection.operation
    if operation is None:
        raise InvariantDefect("cancellation needs an open operation")
    draft = Draft(projection)
    state = operation.state
    if isinstance(state, RunState):
        draft.state(
            change_run(
                state,
                control=CancelRequested(
                    requested_at=requested_at,
                    drained_steer=state.inbox.steer,
                    drained_follow_up=state.inbox.follow_up,
                ),
                inbox=msgspec.structs.replace(state.inbox, steer=(), follow_up=()),
            )
        )
        draft.event(
            RunAbort(
                lane=projection.lane,
                run_id=operation.id,
                steer=drained[0],
                follow_up=drained[1],
            )
        )
        if state.inbox.steer or state.inbox.follow_up:
            draft.event(
                QueueUpdate(lane=projection.lane, steer=(), follow_up=(), next_run=next_run)
            )
    else:
        control = CancelRequested(requested_at=requested_at, drained_steer=(), drained_follow_up=())
        cancelled: OperationState = msgspec.structs.replace(state, control=control)
        draft.state(cancelled)
    return draft.build()


def drained_ids(operation: Operation) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The steer and follow-up items that the abort marker drained."""
    control = operation.state.control
    if isinstance(control, CancelRequested):
        return control.drained_steer, control.drained_follow_up
    return (), ()


def pending_of(payload: EntryPayload) -> PendingEntry:
    """The pending form of a message or custom payload."""
    match payload:
        case MessagePayload(message=message):
            return PendingMessage(payload=message)
        case CustomPayload(custom_type=custom_type, data=data):
            return PendingCustom(custom_type=custom_type, payload=data)
        case CompactionPayload() | BranchSummaryPayload():
            raise InvariantDefect("only messages and custom entries can wait for their place")
        case _:
            assert_never(payload)


def _queue_update(projection: LaneProjection, queues: QueueContents) -> QueueUpdate:
    return QueueUpdate(
        lane=projection.lane, steer=queues[0], follow_up=queues[1], next_run=queues[2]
    )
