"""What must be true of an operation that is still open, at every commit boundary (§9.1: 12, 13, 15, 28, 29, 31)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile
from typing import Any

from harness.context import BACKGROUND
from harness.operation import values
from harness.operation.state import (
    AssistantPhase,
    CallCompleted,
    CallOutcomeReady,
    CallPending,
    CallPlanned,
    CancelRequested,
    DeferredPending,
    DeferredPhase,
    GenerationPending,
    RunState,
    ToolCallState,
    ToolsPhase,
)
from harness.session.session import MAIN_LANE
from harness.storage.address import Value, value
from harness.storage.protocol import EntryScan, Storage, UsageScan
from harness.testing.judging import ledger_problems, operation_state


async def open_problems(storage: Storage, frame_keys: set[str], lane: str = MAIN_LANE) -> list[str]:
    """What is wrong with a lane whose operation may be open: its references, its ids, its batch."""
    problems = await ledger_problems(storage)
    lane_state = await storage.get_value(values.lane_state(lane), BACKGROUND)
    state = await operation_state(storage, lane)
    placed = {entry.id for entry in await storage.scan_entries(EntryScan(), BACKGROUND)}
    charged = {row.id for row in await storage.scan_usage(UsageScan(), BACKGROUND)}
    waiting = set(await keys_of(storage, "pi.pending.entry"))
    named = set(lane_state.value.pending_next_run) if lane_state is not None else set[str]()
    calls: Sequence[ToolCallState] = ()
    response: str | None = None
    if isinstance(state, RunState):
        named |= _queued(state)
        phase = state.phase
        if isinstance(phase, ToolsPhase):
            calls = phase.batch.calls
            problems += _batch_problems(calls, state.settings.tool_execution == "sequential")
            named |= {c.result_entry_id for c in calls if isinstance(c, CallOutcomeReady)}
        pending: GenerationPending | DeferredPending | None = None
        if isinstance(phase, AssistantPhase) and isinstance(phase.generation, GenerationPending):
            pending = phase.generation
        if isinstance(phase, DeferredPhase) and isinstance(phase.deferred, DeferredPending):
            pending = phase.deferred
        if pending is not None:
            response = pending.response_entry_id
            if response in placed or pending.usage_id in charged:
                problems.append(f"response {response} is settled and still pending")
    problems += [f"pending content that nobody names: {key}" for key in waiting - named]
    problems += [f"named content that is missing: {key}" for key in named - waiting]
    problems += [f"pending and placed at once: {key}" for key in waiting & placed]
    problems += await _call_problems(storage, calls, placed)
    problems += await _frame_problems(storage, frame_keys, response)
    return problems


# Any: only the keys are looked at.
async def keys_of(storage: Storage, namespace: str) -> list[str]:
    """Every key of a namespace."""
    prefix: Value[Any] = value(object, namespace)
    return [stored.address.key for stored in await storage.scan_values(prefix, BACKGROUND)]


def _queued(state: RunState) -> set[str]:
    inbox = state.inbox
    queued = {*inbox.steer, *inbox.follow_up, *inbox.writes}
    if isinstance(state.control, CancelRequested):
        queued |= {*state.control.drained_steer, *state.control.drained_follow_up}
    return queued


def _batch_problems(calls: Sequence[ToolCallState], sequential: bool) -> list[str]:
    suffix = list(dropwhile(lambda call: isinstance(call, CallCompleted), calls))
    problems: list[str] = []
    if any(isinstance(call, CallCompleted) for call in suffix):
        problems.append("completed calls are no prefix")
    begun = [call for call in suffix if not isinstance(call, CallPlanned)]
    if sequential and (len(begun) > 1 or suffix[: len(begun)] != begun):
        problems.append("a sequential batch has begun more than its next call")
    return problems


async def _call_problems(
    storage: Storage, calls: Sequence[ToolCallState], placed: set[str]
) -> list[str]:
    problems: list[str] = []
    pending = {call.result_entry_id for call in calls if isinstance(call, CallPending)}
    for namespace in ("pi.pending.tool_output", "pi.op.tool_memo"):
        problems += [
            f"{namespace} of a call that is not pending: {key}"
            for key in await keys_of(storage, namespace)
            if key.split(":")[1] not in pending
        ]
    for call in calls:
        if (call.result_entry_id in placed) != isinstance(call, CallCompleted):
            problems.append(f"call {call.source_index} and the tree disagree about its result")
    arguments = {int(key.rsplit(":", 1)[1]) for key in await keys_of(storage, "pi.op.tool_args")}
    for call in calls:
        if isinstance(call, CallPending) and call.source_index not in arguments:
            problems.append(f"call {call.source_index} is pending without its arguments")
    return problems


async def _frame_problems(
    storage: Storage, frame_keys: set[str], response: str | None
) -> list[str]:
    problems: list[str] = []
    for key in frame_keys:
        operation_id, response_id = key.split(":", 1)
        address = values.pending_assistant_frames(operation_id, response_id)
        if response_id != response and await storage.read_list(address, None, BACKGROUND):
            problems.append(f"frames of a response that is not pending: {key}")
    return problems
