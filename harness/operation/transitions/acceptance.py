"""Acceptance: the one transaction that turns a request into an open operation (§3.6)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.entries import CustomPayload, EntryPayload, MessagePayload
from harness.errors import InvalidMessage, LaneBusy, OperationKind
from harness.messages import AgentMessage
from harness.operation import values
from harness.operation.events import CompactionStart, NavigationStart, QueueUpdate, RunStart
from harness.operation.lane_state import LaneState
from harness.operation.payloads import (
    CompactionPreparation,
    PendingEntry,
    PendingMessage,
    StructuralPreparation,
)
from harness.operation.state import (
    EMPTY_INBOX,
    RUNNING,
    CompactionIntent,
    CompactionState,
    Deciding,
    NavigationIntent,
    NavigationState,
    Operation,
    OperationMeta,
    ReadyToCommit,
    RunIntent,
    RunSettings,
    RunState,
    StartingPhase,
    SummaryPhase,
)
from harness.operation.step import Draft, LaneProjection, Step


@dataclass(frozen=True, slots=True)
class QueuedPayload:
    """A queued item with its dereferenced content."""

    entry_id: str
    payload: PendingEntry


def payload_of_pending(pending: PendingEntry) -> EntryPayload:
    """The entry payload that a pending value becomes when it is placed."""
    if isinstance(pending, PendingMessage):
        return MessagePayload(message=pending.payload)
    return CustomPayload(custom_type=pending.custom_type, data=pending.payload)


def busy(projection: LaneProjection) -> LaneBusy | None:
    """The rejection when the lane has an open operation."""
    operation = projection.operation
    if operation is None:
        return None
    kind: OperationKind = operation.kind
    return LaneBusy(
        message=f"lane {projection.lane} has an open {kind}",
        lane=projection.lane,
        operation_id=operation.id,
        operation_kind=kind,
    )


def accept_run(
    projection: LaneProjection,
    *,
    operation_id: str,
    started_at: int,
    prompts: tuple[tuple[str, AgentMessage], ...],
    captured: tuple[QueuedPayload, ...],
    settings: RunSettings,
) -> Step | LaneBusy | InvalidMessage:
    """Place the captured next-run items, then the prompts, and open a run in `starting`."""
    rejected = busy(projection)
    if rejected is not None:
        return rejected
    if not prompts and not captured:
        return InvalidMessage(
            message="a run needs at least one message",
            lane=projection.lane,
            reason="the request has no message and nothing waits for the next run",
        )
    draft = Draft(projection)
    draft.event(RunStart(lane=projection.lane, run_id=operation_id))
    for item in captured:
        draft.entry(
            item.entry_id, payload_of_pending(item.payload), lifecycle=True, run_id=operation_id
        )
    for entry_id, message in prompts:
        draft.entry(entry_id, MessagePayload(message=message), lifecycle=True, run_id=operation_id)
    draft.delete_all(values.pending_entry(item.entry_id) for item in captured)
    draft.leaf_write()
    taken = {item.entry_id for item in captured}
    remaining = tuple(i for i in projection.state.pending_next_run if i not in taken)
    draft.open(
        Operation(
            OperationMeta(
                operation_id=operation_id,
                lane=projection.lane,
                source_leaf_id=projection.leaf_id,
                started_at=started_at,
                intent=RunIntent(prompt_entry_ids=tuple(entry_id for entry_id, _ in prompts)),
            ),
            RunState(
                control=RUNNING,
                settings=settings,
                phase=StartingPhase(),
                inbox=EMPTY_INBOX,
                latest_assistant_entry_id=None,
            ),
        ),
        LaneState(current_operation_id=operation_id, pending_next_run=remaining),
    )
    if captured:
        draft.event(QueueUpdate(lane=projection.lane, steer=(), follow_up=(), next_run=()))
    return draft.build()


def accept_compaction(
    projection: LaneProjection,
    *,
    operation_id: str,
    started_at: int,
    task_id: str,
    preparation: CompactionPreparation,
    custom_instructions: str | None,
) -> Step | LaneBusy:
    """Open a manual compaction with its prepared input."""
    rejected = busy(projection)
    if rejected is not None:
        return rejected
    operation = Operation(
        OperationMeta(
            operation_id=operation_id,
            lane=projection.lane,
            source_leaf_id=projection.leaf_id,
            started_at=started_at,
            intent=CompactionIntent(custom_instructions=custom_instructions),
        ),
        CompactionState(
            control=RUNNING,
            structural=Deciding(task_id=task_id),
            custom_instructions=custom_instructions,
        ),
    )
    draft = _open_structural(projection, operation, task_id, preparation)
    draft.event(CompactionStart(lane=projection.lane, run_id=operation_id, reason="manual"))
    return draft.build()


def accept_navigation(
    projection: LaneProjection,
    *,
    operation_id: str,
    started_at: int,
    intent: NavigationIntent,
    task: tuple[str, StructuralPreparation] | None,
) -> Step | LaneBusy:
    """Open a navigation; `task` carries task id and preparation when it is summarized."""
    rejected = busy(projection)
    if rejected is not None:
        return rejected
    phase = ReadyToCommit() if task is None else SummaryPhase(structural=Deciding(task_id=task[0]))
    operation = Operation(
        OperationMeta(
            operation_id=operation_id,
            lane=projection.lane,
            source_leaf_id=projection.leaf_id,
            started_at=started_at,
            intent=intent,
        ),
        NavigationState(
            control=RUNNING,
            target_id=intent.target_id,
            summarize=task is not None,
            phase=phase,
            label=intent.label,
            custom_instructions=intent.custom_instructions,
        ),
    )
    if task is None:
        draft = Draft(projection)
        draft.open(operation, _owned_by(projection, operation_id))
    else:
        draft = _open_structural(projection, operation, task[0], task[1])
    draft.event(
        NavigationStart(lane=projection.lane, run_id=operation_id, target_id=intent.target_id)
    )
    return draft.build()


def _open_structural(
    projection: LaneProjection,
    operation: Operation,
    task_id: str,
    preparation: StructuralPreparation,
) -> Draft:
    draft = Draft(projection)
    draft.set(values.operation_preparation(operation.id, task_id), preparation)
    draft.open(operation, _owned_by(projection, operation.id))
    return draft


def _owned_by(projection: LaneProjection, operation_id: str) -> LaneState:
    return LaneState(
        current_operation_id=operation_id, pending_next_run=projection.state.pending_next_run
    )
