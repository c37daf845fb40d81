"""The terminal transaction: the operation ceases to exist and its outcome stays on the lane (§3.13)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from harness.errors import InvariantDefect
from harness.messages import AssistantMessage
from harness.operation import values
from harness.operation.durable import OperationError
from harness.operation.events import CompactionEnd, HarnessEvent, NavigationEnd, RunEnd
from harness.operation.lane_state import (
    CompactionLastResult,
    LaneLastResult,
    NavigationLastResult,
    RunLastResult,
)
from harness.operation.state import (
    AssistantPhase,
    CallOutcomeReady,
    CancelRequested,
    DeferredPending,
    DeferredPhase,
    GenerationPending,
    Operation,
    RunState,
    ToolsPhase,
)
from harness.operation.step import Draft, LaneProjection, Step, run_state
from harness.storage.address import AnyValue


def pending_ids(operation: Operation) -> tuple[str, ...]:
    """Every pending entry that the operation still owns; never the lane's next-run queue."""
    state = operation.state
    if not isinstance(state, RunState):
        return ()
    ids = [*state.inbox.steer, *state.inbox.follow_up, *state.inbox.writes]
    if isinstance(state.control, CancelRequested):
        ids += [*state.control.drained_steer, *state.control.drained_follow_up]
    if isinstance(state.phase, ToolsPhase):
        ids += [
            call.result_entry_id
            for call in state.phase.batch.calls
            if isinstance(call, CallOutcomeReady)
        ]
    return tuple(ids)


def pending_response_id(operation: Operation) -> str | None:
    """The reserved id of a response whose frames may still exist."""
    state = operation.state
    if not isinstance(state, RunState):
        return None
    phase = state.phase
    if isinstance(phase, AssistantPhase) and isinstance(phase.generation, GenerationPending):
        return phase.generation.response_entry_id
    if isinstance(phase, DeferredPhase) and isinstance(phase.deferred, DeferredPending):
        return phase.deferred.response_entry_id
    return None


def end_operation(
    draft: Draft,
    result: LaneLastResult,
    owned: Iterable[AnyValue],
    end: HarnessEvent | None,
) -> Step:
    """Complete a draft that may already publish content: delete everything owned, record, go idle.

    `owned` are the addresses found under the operation's scan prefixes. `end` is None where the
    end event carries an entry that only the commit stamps; the caller then reports it.
    """
    operation = draft.operation
    draft.delete(values.operation_meta(operation.id))
    draft.delete(values.operation_state(operation.id))
    draft.delete_all(owned)
    response_id = pending_response_id(operation)
    if response_id is not None:
        draft.delete_frames(operation.id, response_id)
    draft.delete_all(values.pending_entry(entry_id) for entry_id in pending_ids(operation))
    draft.finish(result)
    if end is not None:
        draft.event(end)
    return draft.build()


def finish_run(
    projection: LaneProjection,
    owned: Iterable[AnyValue],
    *,
    include_final_assistant: bool,
    final: AssistantMessage | None,
) -> Step:
    """The run completed, with its final assistant message or ended by its tools."""
    operation, state = run_state(projection)
    final_id = state.latest_assistant_entry_id if include_final_assistant else None
    return end_operation(
        Draft(projection),
        RunLastResult(
            operation_id=operation.id,
            outcome="completed",
            leaf_id=_leaf(projection),
            final_assistant_entry_id=final_id,
            run_completion="assistant" if include_final_assistant else "terminated_tools",
        ),
        owned,
        RunEnd(
            lane=projection.lane,
            run_id=operation.id,
            leaf_id=projection.leaf_id,
            outcome="completed",
            final_entry_id=final_id,
            final_message=final if include_final_assistant else None,
        ),
    )


def fail_run(
    projection: LaneProjection,
    owned: Iterable[AnyValue],
    error: OperationError,
    final: AssistantMessage | None,
) -> Step:
    """The run failed."""
    operation, state = run_state(projection)
    return end_operation(
        Draft(projection),
        RunLastResult(
            operation_id=operation.id,
            outcome="failed",
            leaf_id=_leaf(projection),
            final_assistant_entry_id=state.latest_assistant_entry_id,
            error=error,
        ),
        owned,
        RunEnd(
            lane=projection.lane,
            run_id=operation.id,
            leaf_id=projection.leaf_id,
            outcome="failed",
            error=error,
            final_entry_id=state.latest_assistant_entry_id,
            final_message=final,
        ),
    )


def abort_run(
    projection: LaneProjection, owned: Iterable[AnyValue], final: AssistantMessage | None
) -> Step:
    """The run was cancelled and everything about it is reconciled."""
    operation, state = run_state(projection)
    return end_operation(
        Draft(projection),
        RunLastResult(
            operation_id=operation.id,
            outcome="aborted",
            leaf_id=_leaf(projection),
            final_assistant_entry_id=state.latest_assistant_entry_id,
        ),
        owned,
        RunEnd(
            lane=projection.lane,
            run_id=operation.id,
            leaf_id=projection.leaf_id,
            outcome="aborted",
            final_entry_id=state.latest_assistant_entry_id,
            final_message=final,
        ),
    )


def end_structural(
    projection: LaneProjection,
    owned: Iterable[AnyValue],
    outcome: Literal["failed", "aborted", "declined"],
    error: OperationError | None = None,
) -> Step:
    """A standalone compaction or navigation ends without publishing anything."""
    operation = projection.operation
    if operation is None:
        raise InvariantDefect("no structural operation is open")
    lane = projection.lane
    if operation.kind == "compaction":
        result: LaneLastResult = CompactionLastResult(
            operation_id=operation.id,
            outcome=outcome,
            leaf_id=_leaf(projection),
            error=error,
        )
        end: HarnessEvent = CompactionEnd(
            lane=lane,
            run_id=operation.id,
            reason="manual",
            outcome=outcome,
            error=error,
        )
    else:
        result = NavigationLastResult(
            operation_id=operation.id,
            outcome=outcome,
            leaf_id=projection.leaf_id,
            old_leaf_id=operation.meta.source_leaf_id,
            error=error,
        )
        end = NavigationEnd(
            lane=lane,
            run_id=operation.id,
            old_leaf_id=operation.meta.source_leaf_id,
            new_leaf_id=projection.leaf_id,
            outcome=outcome,
            error=error,
        )
    return end_operation(Draft(projection), result, owned, end)


def _leaf(projection: LaneProjection) -> str:
    if projection.leaf_id is None:
        raise InvariantDefect("an operation that placed entries ended at the root")
    return projection.leaf_id
