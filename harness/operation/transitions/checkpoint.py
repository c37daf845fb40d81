"""Transitions at a checkpoint: hook output of the start, deferred writes, queued input, follow-ups (§3.12)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from harness.entries import MessagePayload
from harness.errors import InvariantDefect
from harness.messages import AgentMessage
from harness.operation import values
from harness.operation.events import QueuedItem, QueueUpdate
from harness.operation.payloads import (
    CompactionPreparation,
    PendingCustom,
    PendingEntry,
    PendingMessage,
)
from harness.operation.state import (
    CheckpointPhase,
    CompactionPhase,
    Deciding,
    FailureDrainPhase,
    Inbox,
    NeedAssistant,
    RunState,
)
from harness.operation.step import Draft, LaneProjection, Step, change_run, run_state
from harness.operation.transitions.acceptance import QueuedPayload, payload_of_pending

QueueName: TypeAlias = Literal["steer", "follow_up", "writes"]

NEED_ASSISTANT = NeedAssistant(overflow_recovery_used=False)


def start_run(projection: LaneProjection, injected: tuple[tuple[str, AgentMessage], ...]) -> Step:
    """Consume `before_run`: place injected messages and reach the first checkpoint (§3.6)."""
    operation, state = run_state(projection)
    draft = Draft(projection)
    for entry_id, message in injected:
        draft.entry(entry_id, MessagePayload(message=message), lifecycle=True, run_id=operation.id)
    if injected:
        draft.leaf_write()
    trigger = draft.leaf
    if trigger is None:
        raise InvariantDefect("an accepted run has no entry")
    draft.state(
        change_run(
            state,
            phase=CheckpointPhase(continuation=NEED_ASSISTANT, trigger_entry_id=trigger),
        )
    )
    return draft.build()


def projecting(pending: PendingEntry, projected_custom_types: frozenset[str]) -> bool:
    """Whether placing this item adds to the model's context."""
    match pending:
        case PendingMessage():
            return True
        case PendingCustom(custom_type=custom_type):
            return custom_type in projected_custom_types


def consume(
    projection: LaneProjection,
    queue: QueueName,
    items: tuple[QueuedPayload, ...],
    *,
    projected_custom_types: frozenset[str],
    queues: tuple[tuple[QueuedItem, ...], tuple[QueuedItem, ...], tuple[QueuedItem, ...]],
) -> Step:
    """Place queued items at a checkpoint or failure drain.

    Input that reaches the model makes the run owe an assistant turn and clears a failure; a custom
    entry without projector leaves phase, trigger and overflow mark alone. Under durable
    cancellation nothing but the entries changes. `queues` is what remains, for `queue_update`.
    """
    operation, state = run_state(projection)
    draft = Draft(projection)
    for item in items:
        draft.entry(
            item.entry_id,
            payload_of_pending(item.payload),
            lifecycle=True,
            run_id=operation.id,
        )
    draft.delete_all(values.pending_entry(item.entry_id) for item in items)
    draft.leaf_write()
    taken = {item.entry_id for item in items}
    remaining = tuple(i for i in getattr(state.inbox, queue) if i not in taken)
    inbox: Inbox = msgspec.structs.replace(state.inbox, **{queue: remaining})
    newest = [i.entry_id for i in items if projecting(i.payload, projected_custom_types)]
    phase = state.phase
    if newest and not operation.cancelling:
        phase = CheckpointPhase(
            continuation=NEED_ASSISTANT, trigger_entry_id=newest[-1], skip_inbox_once=True
        )
    draft.state(change_run(state, inbox=inbox, phase=phase))
    if queue != "writes":
        draft.event(
            QueueUpdate(
                lane=projection.lane, steer=queues[0], follow_up=queues[1], next_run=queues[2]
            )
        )
    return draft.build()


def run_end_follow_up(projection: LaneProjection, entry_id: str, message: AgentMessage) -> Step:
    """Place the follow-up that `before_run_end` returned and go on."""
    operation, state = run_state(projection)
    draft = Draft(projection)
    draft.entry(entry_id, MessagePayload(message=message), lifecycle=True, run_id=operation.id)
    draft.leaf_write()
    draft.state(
        change_run(
            state,
            phase=CheckpointPhase(
                continuation=NEED_ASSISTANT, trigger_entry_id=entry_id, skip_inbox_once=True
            ),
        )
    )
    return draft.build()


def checkpoint_of(state: RunState) -> CheckpointPhase:
    """The checkpoint that the run stands at; anything else is a defect of the caller."""
    if not isinstance(state.phase, CheckpointPhase):
        raise InvariantDefect(f"expected a checkpoint, found {type(state.phase).__name__}")
    return state.phase


def mark_threshold_checked(projection: LaneProjection) -> Step:
    """Remember that this boundary was checked and nothing could be compacted (§3.9)."""
    _, state = run_state(projection)
    draft = Draft(projection)
    draft.state(change_run(state, phase=_checked(checkpoint_of(state))))
    return draft.build()


def begin_threshold_compaction(
    projection: LaneProjection, task_id: str, preparation: CompactionPreparation
) -> Step:
    """Enter compaction from a checkpoint, which is marked so that it is not checked again."""
    operation, state = run_state(projection)
    draft = Draft(projection)
    draft.set(values.operation_preparation(operation.id, task_id), preparation)
    draft.state(
        change_run(
            state,
            phase=CompactionPhase(
                reason="threshold",
                structural=Deciding(task_id=task_id),
                resume_after=_checked(checkpoint_of(state)),
            ),
        )
    )
    return draft.build()


def _checked(checkpoint: CheckpointPhase) -> CheckpointPhase:
    return msgspec.structs.replace(
        checkpoint, threshold_checked_trigger_entry_id=checkpoint.trigger_entry_id
    )


def is_drain_point(state: RunState) -> bool:
    """Whether queued input may be consumed in this phase."""
    return isinstance(state.phase, CheckpointPhase | FailureDrainPhase)
