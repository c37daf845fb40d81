"""Transitions of a tool batch: clearance intent, staging, source-ordered materialization (§3.8)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from harness.codec import JsonValue
from harness.entries import MessagePayload
from harness.errors import InvariantDefect
from harness.messages import ToolResultMessage
from harness.operation import values
from harness.operation.payloads import PendingMessage
from harness.operation.state import (
    CallCompleted,
    CallOutcomeReady,
    CallPending,
    CallPlanned,
    CheckpointPhase,
    MayFinish,
    RunState,
    ToolBatch,
    ToolCallState,
    ToolsPhase,
)
from harness.operation.step import Draft, LaneProjection, Step, change_run, run_state
from harness.operation.transitions.checkpoint import NEED_ASSISTANT
from harness.settings import ReplayPolicy
from harness.storage.address import AnyValue
from harness.usage import NewUsageRow


def batch_of(state: RunState) -> ToolBatch:
    """The batch of a tools phase; anything else is a defect of the caller."""
    if not isinstance(state.phase, ToolsPhase):
        raise InvariantDefect(f"expected a tool batch, found {type(state.phase).__name__}")
    return state.phase.batch


def call_at(batch: ToolBatch, source_index: int) -> ToolCallState:
    """The call of that source position."""
    for call in batch.calls:
        if call.source_index == source_index:
            return call
    raise InvariantDefect(f"the batch has no call at content index {source_index}")


def intend_call(
    projection: LaneProjection,
    source_index: int,
    arguments: dict[str, JsonValue],
    replay: ReplayPolicy,
) -> Step:
    """Store the effective arguments and say that the tool may run from now on."""
    operation, state = run_state(projection)
    batch = batch_of(state)
    call = call_at(batch, source_index)
    if not isinstance(call, CallPlanned):
        raise InvariantDefect("only a planned call can be cleared")
    draft = Draft(projection)
    draft.set(values.operation_tool_args(operation.id, batch.turn_id, source_index), arguments)
    draft.state(
        _with_call(
            state,
            batch,
            CallPending(
                source_index=source_index, result_entry_id=call.result_entry_id, replay=replay
            ),
        )
    )
    return draft.build()


def stage_outcome(
    projection: LaneProjection,
    source_index: int,
    message: ToolResultMessage,
    *,
    terminate: bool,
    memos: Iterable[AnyValue],
) -> Step:
    """Make the final result durable in its pending value; the call never runs again."""
    operation, state = run_state(projection)
    batch = batch_of(state)
    call = call_at(batch, source_index)
    if not isinstance(call, CallPlanned | CallPending):
        raise InvariantDefect("an outcome was staged twice")
    draft = Draft(projection)
    draft.set(values.pending_entry(call.result_entry_id), PendingMessage(payload=message))
    if isinstance(call, CallPending):
        draft.delete(values.pending_tool_output(operation.id, call.result_entry_id))
        draft.delete_all(memos)
    draft.state(
        _with_call(
            state,
            batch,
            CallOutcomeReady(
                source_index=source_index,
                result_entry_id=call.result_entry_id,
                terminate=terminate,
            ),
        )
    )
    return draft.build()


def ready_prefix(batch: ToolBatch) -> tuple[CallOutcomeReady, ...]:
    """The staged calls that can be placed now: contiguous from the first one not completed."""
    ready: list[CallOutcomeReady] = []
    for call in batch.calls:
        if isinstance(call, CallCompleted):
            continue
        if not isinstance(call, CallOutcomeReady):
            break
        ready.append(call)
    return tuple(ready)


def materialize(
    projection: LaneProjection,
    results: tuple[tuple[CallOutcomeReady, ToolResultMessage], ...],
    *,
    usage_ids: Iterable[str],
    batch_arguments: Iterable[AnyValue],
    recovery: bool = False,
) -> Step:
    """Place staged results in source order; the last one ends the batch.

    `usage_ids` supplies an id per result that reports usage; `batch_arguments` are the stored
    arguments of the batch, deleted when it ends.
    """
    operation, state = run_state(projection)
    batch = batch_of(state)
    ids = iter(usage_ids)
    draft = Draft(projection)
    placed: dict[int, ToolCallState] = {}
    for call, message in results:
        draft.entry(
            call.result_entry_id,
            MessagePayload(message=message, terminate=call.terminate),
            lifecycle=True,
            run_id=operation.id,
            recovery=recovery,
        )
        placed[call.source_index] = CallCompleted(
            source_index=call.source_index,
            result_entry_id=call.result_entry_id,
            terminate=call.terminate,
        )
    draft.delete_all(values.pending_entry(call.result_entry_id) for call, _ in results)
    for call, message in results:
        if message.usage is not None:
            draft.usage(
                NewUsageRow(id=next(ids), usage=message.usage, entry_id=call.result_entry_id)
            )
    draft.leaf_write()
    calls = tuple(placed.get(call.source_index, call) for call in batch.calls)
    done = [call for call in calls if isinstance(call, CallCompleted)]
    if len(done) < len(calls):
        phase = ToolsPhase(batch=msgspec.structs.replace(batch, calls=calls))
    else:
        draft.delete_all(batch_arguments)
        newest = done[-1].result_entry_id
        if all(call.terminate for call in done):
            phase = CheckpointPhase(
                continuation=MayFinish(include_final_assistant=False), trigger_entry_id=newest
            )
        else:
            phase = CheckpointPhase(continuation=NEED_ASSISTANT, trigger_entry_id=newest)
    draft.state(change_run(state, phase=phase))
    return draft.build()


def _with_call(state: RunState, batch: ToolBatch, changed: ToolCallState) -> RunState:
    calls = tuple(
        changed if call.source_index == changed.source_index else call for call in batch.calls
    )
    return change_run(state, phase=ToolsPhase(batch=msgspec.structs.replace(batch, calls=calls)))
