"""Transitions of summary generation, shared by compactions and summarized navigation (§3.9)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from harness.entries import CompactionPayload
from harness.errors import InvariantDefect
from harness.operation.durable import OperationError
from harness.operation.events import CompactionEnd, RetryScheduled
from harness.operation.lane_state import CompactionLastResult
from harness.operation.state import (
    CompactionPhase,
    CompactionReason,
    CompactionState,
    ConfigurationProvenance,
    FailureDrainPhase,
    Generating,
    NavigationState,
    Operation,
    OperationState,
    RunState,
    StructuralDecision,
    StructuralProvenance,
    SummaryContext,
    SummaryGeneration,
    SummaryPending,
    SummaryPhase,
    SummaryReady,
    SummaryRequest,
    SummaryRetryWait,
)
from harness.operation.step import Draft, LaneProjection, Step, change_run
from harness.operation.transitions.terminal import end_operation, end_structural
from harness.settings import retry_delay_ms, saturating_add
from harness.storage.address import AnyValue
from harness.usage import NewUsageRow


def structural_of(state: OperationState) -> StructuralDecision | None:
    """The structural decision that the state stands in, if any."""
    match state:
        case RunState(phase=CompactionPhase(structural=structural)):
            return structural
        case RunState():
            return None
        case CompactionState(structural=structural):
            return structural
        case NavigationState(phase=SummaryPhase(structural=structural)):
            return structural
        case NavigationState():
            return None
        case _:
            assert_never(state)


def reason_of(state: OperationState) -> CompactionReason:
    """Why the compaction happens."""
    if isinstance(state, RunState) and isinstance(state.phase, CompactionPhase):
        return state.phase.reason
    return "manual"


def with_structural(state: OperationState, structural: StructuralDecision) -> OperationState:
    """The state with its structural decision replaced."""
    match state:
        case RunState(phase=CompactionPhase() as phase):
            return change_run(state, phase=msgspec.structs.replace(phase, structural=structural))
        case CompactionState():
            return msgspec.structs.replace(state, structural=structural)
        case NavigationState(phase=SummaryPhase()):
            return msgspec.structs.replace(state, phase=SummaryPhase(structural=structural))
        case RunState() | NavigationState():
            raise InvariantDefect("no structural work is under way")
        case _:
            assert_never(state)


def begin_summary(projection: LaneProjection, context: SummaryContext) -> Step:
    """Generation was chosen: capture configuration; the decision hook never runs again."""
    return _generation(projection, SummaryReady(context=context, next_attempt=1))


def begin_attempt(projection: LaneProjection, ready: SummaryReady) -> Step:
    """Say that an attempt is under way."""
    return _generation(
        projection,
        SummaryPending(context=ready.context, attempt=ready.next_attempt, usage_ids=()),
    )


def intend_summary_request(
    projection: LaneProjection, pending: SummaryPending, request: SummaryRequest
) -> Step:
    """Reserve the ledger row of the next nested request."""
    return _generation(projection, msgspec.structs.replace(pending, request=request))


def settle_summary_request(
    projection: LaneProjection, pending: SummaryPending, row: NewUsageRow
) -> Step:
    """Write the cost of the nested request that returned and clear its intent."""
    draft = Draft(projection)
    draft.usage(row)
    draft.state(
        with_structural(
            draft.operation.state,
            _generating(
                draft.operation.state,
                msgspec.structs.replace(
                    pending, request=None, usage_ids=(*pending.usage_ids, row.id)
                ),
            ),
        )
    )
    return draft.build()


def retry_summary(
    projection: LaneProjection,
    pending: SummaryPending,
    *,
    now: int,
    error_message: str,
    retry_after_ms: int | None = None,
    recovery: bool = False,
) -> Step:
    """The attempt failed and may be repeated later."""
    policy = pending.context.retry_policy
    delay = max(retry_delay_ms(policy, pending.attempt), retry_after_ms or 0)
    draft = Draft(projection)
    draft.state(
        with_structural(
            draft.operation.state,
            _generating(
                draft.operation.state,
                SummaryRetryWait(
                    context=pending.context,
                    next_attempt=pending.attempt + 1,
                    not_before=saturating_add(now, delay),
                    error_message=error_message,
                ),
            ),
        )
    )
    draft.event(
        RetryScheduled(
            lane=projection.lane,
            run_id=draft.operation.id,
            step=pending.context.task_id,
            attempt=pending.attempt + 1,
            max_attempts=policy.max_attempts,
            delay_ms=delay,
            error_message=error_message,
            recovery=recovery,
        )
    )
    return draft.build()


def summary_retry_elapsed(projection: LaneProjection, wait: SummaryRetryWait) -> Step:
    """The wait is over; the next attempt may be prepared."""
    return _generation(
        projection, SummaryReady(context=wait.context, next_attempt=wait.next_attempt)
    )


def decline_compaction(projection: LaneProjection, owned: Iterable[AnyValue]) -> Step:
    """The decision hook declined: by reason, end, go on, or fail (§3.9)."""
    operation = _open(projection)
    state = operation.state
    if not isinstance(state, RunState):
        return end_structural(projection, owned, "declined")
    phase = _run_compaction(state)
    draft = Draft(projection)
    if phase.reason == "threshold":
        draft.state(change_run(state, phase=phase.resume_after))
    else:
        draft.state(
            change_run(
                state,
                phase=FailureDrainPhase(
                    error=OperationError(
                        code="compaction_declined",
                        message="the request did not fit and compaction was declined",
                    ),
                    provenance=StructuralProvenance(task_id=phase.structural.task_id),
                ),
            )
        )
    draft.event(
        CompactionEnd(
            lane=projection.lane, run_id=operation.id, reason=phase.reason, outcome="declined"
        )
    )
    return draft.build()


def fail_structural(
    projection: LaneProjection,
    owned: Iterable[AnyValue],
    error: OperationError,
    *,
    configuration: bool = False,
) -> Step:
    """Generation failed for good: a standalone operation ends, a run drains (§3.9)."""
    operation = _open(projection)
    state = operation.state
    if not isinstance(state, RunState):
        return end_structural(projection, owned, "failed", error)
    phase = _run_compaction(state)
    draft = Draft(projection)
    draft.state(
        change_run(
            state,
            phase=FailureDrainPhase(
                error=error,
                provenance=(
                    ConfigurationProvenance()
                    if configuration
                    else StructuralProvenance(task_id=phase.structural.task_id)
                ),
            ),
        )
    )
    draft.event(
        CompactionEnd(
            lane=projection.lane,
            run_id=operation.id,
            reason=phase.reason,
            outcome="failed",
            error=error,
        )
    )
    return draft.build()


def publish_compaction(
    projection: LaneProjection,
    entry_id: str,
    payload: CompactionPayload,
    *,
    hook_usage: NewUsageRow | None,
    owned: Iterable[AnyValue],
) -> tuple[Step, int]:
    """Place the compaction; a standalone operation ends with it, a run resumes.

    Returns the step and the index of its entry write. The caller reports `compaction_end`, which
    carries the stamped entry.
    """
    operation = _open(projection)
    draft = Draft(projection)
    if hook_usage is not None:
        draft.usage(hook_usage)
    index = 0 if hook_usage is None else 1
    draft.entry(entry_id, payload)
    draft.leaf_write()
    state = operation.state
    if isinstance(state, RunState):
        phase = _run_compaction(state)
        draft.state(change_run(state, phase=phase.resume_after))
        return draft.build(), index
    step = end_operation(
        draft,
        CompactionLastResult(operation_id=operation.id, outcome="completed", leaf_id=entry_id),
        owned,
        None,
    )
    return step, index


def _run_compaction(state: RunState) -> CompactionPhase:
    if not isinstance(state.phase, CompactionPhase):
        raise InvariantDefect("the run is not compacting")
    return state.phase


def _open(projection: LaneProjection) -> Operation:
    if projection.operation is None:
        raise InvariantDefect("no operation is open")
    return projection.operation


def _generating(state: OperationState, generation: SummaryGeneration) -> Generating:
    structural = structural_of(state)
    if structural is None:
        raise InvariantDefect("no structural work is under way")
    return Generating(task_id=structural.task_id, generation=generation)


def _generation(projection: LaneProjection, generation: SummaryGeneration) -> Step:
    draft = Draft(projection)
    state = draft.operation.state
    draft.state(with_structural(state, _generating(state, generation)))
    return draft.build()
