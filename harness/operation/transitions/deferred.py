"""Transitions of deferred generation: one poll per permit, newest response is the next source (§3.2)."""

from __future__ import annotations

from typing import assert_never

from harness.errors import InvariantDefect
from harness.operation.classify import (
    Cancelled,
    Classification,
    Failed,
    Finished,
    Overflow,
    Suspended,
    WantsTools,
)
from harness.operation.durable import OperationError
from harness.operation.state import (
    ConfigurationProvenance,
    Deferred,
    DeferredPending,
    DeferredPhase,
    DeferredSuspended,
    FailureDrainPhase,
    RunPhase,
    RunState,
)
from harness.operation.step import Draft, LaneProjection, Step, change_run, run_state
from harness.operation.transitions.assistant import (
    FollowerIds,
    finish_checkpoint,
    plan_tools,
    response_failure,
    settled_response,
)


def deferred_of(state: RunState) -> Deferred:
    """The deferred state of a run; anything else is a defect of the caller."""
    if not isinstance(state.phase, DeferredPhase):
        raise InvariantDefect(f"expected deferral, found {type(state.phase).__name__}")
    return state.phase.deferred


def poll_turn_id(step_id: str, poll: int) -> str:
    """The durable turn id of a poll."""
    return f"{step_id}:poll:{poll}"


def intend_poll(projection: LaneProjection, response_entry_id: str, usage_id: str) -> Step:
    """Reserve a poll's response. After an unknown poll the number stays and old frames go."""
    operation, state = run_state(projection)
    deferred = deferred_of(state)
    draft = Draft(projection)
    match deferred:
        case DeferredSuspended(poll=completed):
            poll = completed + 1
        case DeferredPending(poll=unknown, response_entry_id=abandoned):
            poll = unknown
            draft.delete_frames(operation.id, abandoned)
        case _:
            assert_never(deferred)
    draft.state(
        change_run(
            state,
            phase=DeferredPhase(
                deferred=DeferredPending(
                    step_id=deferred.step_id,
                    source_entry_id=deferred.source_entry_id,
                    poll=poll,
                    response_entry_id=response_entry_id,
                    usage_id=usage_id,
                    configuration=deferred.configuration,
                    stream_options=deferred.stream_options,
                )
            ),
        )
    )
    return draft.build()


def abandon_deferred(projection: LaneProjection, error: OperationError) -> Step:
    """The captured model is gone: give the handle up without fabricating a response."""
    operation, state = run_state(projection)
    deferred = deferred_of(state)
    draft = Draft(projection)
    if isinstance(deferred, DeferredPending):
        draft.delete_frames(operation.id, deferred.response_entry_id)
    draft.state(
        change_run(
            state,
            phase=FailureDrainPhase(error=error, provenance=ConfigurationProvenance()),
        )
    )
    return draft.build()


def settle_poll(
    projection: LaneProjection,
    pending: DeferredPending,
    outcome: Classification,
    *,
    follower: FollowerIds,
) -> Step:
    """Commit a poll's response, cost and consequence. Polls have no retry path."""
    operation, state = run_state(projection)
    response_id = pending.response_entry_id
    draft = settled_response(
        projection, operation.id, response_id, pending.usage_id, outcome.message, recovery=False
    )
    phase: RunPhase
    match outcome:
        case Cancelled() | Finished():
            phase = finish_checkpoint(response_id, include=True)
        case Overflow(message=message) | Failed(message=message):
            phase = response_failure(response_id, message, "provider_error")
        case Suspended():
            phase = DeferredPhase(
                deferred=DeferredSuspended(
                    step_id=pending.step_id,
                    source_entry_id=response_id,
                    poll=pending.poll,
                    configuration=pending.configuration,
                    stream_options=pending.stream_options,
                )
            )
        case WantsTools(message=message):
            phase = plan_tools(
                response_id,
                message,
                pending.configuration,
                poll_turn_id(pending.step_id, pending.poll),
                follower,
            )
        case _:
            assert_never(outcome)
    draft.state(change_run(state, phase=phase, latest_assistant_entry_id=response_id))
    return draft.build()
