"""The invariants of open operations and of what waits for its place (§9.1, 12-15 and 27-32)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TypeAlias, assert_never

from harness.entries import MessageEntry
from harness.messages import AssistantMessage, ToolResultMessage, tool_calls
from harness.operation import values
from harness.operation.payloads import PendingMessage
from harness.operation.state import (
    AssistantPhase,
    CallCompleted,
    CallOutcomeReady,
    CallPending,
    CallPlanned,
    CancelRequested,
    CheckpointPhase,
    CompactionIntent,
    CompactionPhase,
    CompactionState,
    Deciding,
    DeferredPending,
    DeferredPhase,
    FailureDrainPhase,
    Generating,
    GenerationPending,
    NavigationIntent,
    NavigationState,
    OperationMeta,
    OperationState,
    ReadyToCommit,
    ResponseProvenance,
    RunIntent,
    RunState,
    StartingPhase,
    StructuralDecision,
    SummaryPending,
    SummaryPhase,
    ToolBatch,
    ToolCallState,
    ToolsPhase,
)
from harness.testing.content import LIST_TYPES, Content

Violations: TypeAlias = Iterator[str]

# Namespaces whose keys begin with the id of the operation that owns them.
_OWNED = (
    "pi.op.meta",
    "pi.op.state",
    "pi.op.tool_args",
    "pi.op.tool_memo",
    "pi.op.preparation",
    "pi.pending.tool_output",
)


def operation_violations(content: Content) -> list[str]:
    """What is wrong with open operations and pending content."""
    return [*_ownership(content), *_pending(content), *_states(content)]


def open_operations(content: Content) -> dict[str, str]:
    """Operation ids by lane."""
    found: dict[str, str] = {}
    for lane in content.lanes():
        current = content.current(lane)
        if current is not None:
            found[lane] = current
    return found


def _ownership(content: Content) -> Violations:
    current = open_operations(content)
    if len(set(current.values())) != len(current):
        yield f"17: two lanes name one operation: {current}"
    for lane, operation_id in current.items():
        meta, state = content.operation(operation_id)
        if meta is None or state is None:
            yield f"12: operation {operation_id} of lane {lane} has no meta or no state"
        elif meta.operation_id != operation_id or meta.lane != lane or not _fits(meta, state):
            yield f"12: operation {operation_id} of lane {lane} is {meta} and {state}"
    known = set(current.values())
    for namespace in _OWNED:
        for key in content.keys(namespace):
            if key.split(":", 1)[0] not in known:
                yield f"13: {namespace}/{key} belongs to no open operation"
    for kind, namespace, key in content.namespaces():
        if kind == "list" and namespace in LIST_TYPES and key.split(":", 1)[0] not in known:
            yield f"13: {namespace}/{key} belongs to no open operation"


def _fits(meta: OperationMeta, state: OperationState) -> bool:
    match meta.intent, state:
        case (
            (RunIntent(), RunState())
            | (CompactionIntent(), CompactionState())
            | (NavigationIntent(), NavigationState())
        ):
            return True
        case _:
            return False


def reserved_ids(state: OperationState) -> tuple[str, str] | None:
    """The response and ledger ids of the assistant request or poll that is under way."""
    phase = state.phase if isinstance(state, RunState) else None
    if isinstance(phase, AssistantPhase) and isinstance(phase.generation, GenerationPending):
        return phase.generation.response_entry_id, phase.generation.usage_id
    if isinstance(phase, DeferredPhase) and isinstance(phase.deferred, DeferredPending):
        return phase.deferred.response_entry_id, phase.deferred.usage_id
    return None


def pending_owners(content: Content) -> dict[str, list[str]]:
    """What claims each entry id that waits for its place."""
    owners: dict[str, list[str]] = defaultdict(list)
    for lane in content.lanes():
        state = content.lane_state(lane)
        for entry_id in () if state is None else state.pending_next_run:
            owners[entry_id].append(f"next run of {lane}")
    for lane, operation_id in open_operations(content).items():
        _, state = content.operation(operation_id)
        if not isinstance(state, RunState):
            continue
        for queue in ("steer", "follow_up", "writes"):
            for entry_id in getattr(state.inbox, queue):
                owners[entry_id].append(f"{queue} of {lane}")
        if isinstance(state.control, CancelRequested):
            for entry_id in (*state.control.drained_steer, *state.control.drained_follow_up):
                owners[entry_id].append(f"drained on {lane}")
        if isinstance(state.phase, ToolsPhase):
            for call in state.phase.batch.calls:
                if isinstance(call, CallOutcomeReady):
                    owners[call.result_entry_id].append(f"outcome on {lane}")
    return owners


def _pending(content: Content) -> Violations:
    owners = pending_owners(content)
    for entry_id, claims in owners.items():
        if len(claims) > 1:
            yield f"4: {entry_id} waits as {claims}"
        pending = content.pending(entry_id)
        if pending is None:
            yield f"15: {entry_id} ({claims[0]}) has no content"
        elif not claims[0].startswith("writes") and not isinstance(pending, PendingMessage):
            yield f"15: {entry_id} ({claims[0]}) waits with {pending}"
    for entry_id in content.keys(values.pending_entry("").namespace):
        if entry_id in content.entries:
            yield f"4: {entry_id} waits and is placed"
        if entry_id in content.usage:
            yield f"1: {entry_id} waits as an entry and is a ledger row"
        if entry_id not in owners:
            yield f"13: {entry_id} waits for nobody"


def _states(content: Content) -> Violations:
    for operation_id in open_operations(content).values():
        _, state = content.operation(operation_id)
        match state:
            case None:
                continue  # reported as 12
            case RunState():
                yield from _Run(content, operation_id, state).violations()
            case CompactionState(structural=structural):
                yield from _structural(content, operation_id, structural, "compaction")
            case NavigationState(phase=ReadyToCommit(), summarize=summarize):
                if summarize:
                    yield f"12: navigation {operation_id} wants a summary and makes none"
            case NavigationState(phase=SummaryPhase(structural=structural)):
                yield from _structural(content, operation_id, structural, "branch_summary")
            case NavigationState():
                yield f"12: navigation {operation_id} is in an unknown phase"
            case _:
                assert_never(state)
        if not isinstance(state, RunState):
            yield from _frames(content, operation_id, None)


def _structural(
    content: Content, operation_id: str, structural: StructuralDecision, kind: str
) -> Violations:
    task = structural.task_id
    preparation = content.get(values.operation_preparation(operation_id, task))
    if preparation is None:
        yield f"12: task {task} of {operation_id} has no preparation"
    match structural:
        case Deciding():
            return
        case Generating(generation=generation):
            context = generation.context
            if context.kind != kind or context.task_id != task:
                yield f"12: task {task} makes {context.kind} for {context.task_id}"
            if context.result_entry_id in content.entries:
                yield f"15: reserved summary {context.result_entry_id} is there already"
            if isinstance(generation, SummaryPending):
                for usage_id in generation.usage_ids:
                    if usage_id not in content.usage:
                        yield f"15: paid request {usage_id} is not in the ledger"
                if generation.request is not None and generation.request.usage_id in content.usage:
                    yield f"15: reserved row {generation.request.usage_id} is there already"
        case _:
            assert_never(structural)


def _frames(content: Content, operation_id: str, response_id: str | None) -> Violations:
    space = values.pending_assistant_frames("", "").namespace
    for kind, namespace, key in content.namespaces():
        if kind == "list" and namespace == space and key.startswith(f"{operation_id}:"):
            if response_id is None or key != f"{operation_id}:{response_id}":
                yield f"31: frames of {key} have no response under way"
            else:
                # Decoding is the check: a terminal event is no frame.
                content.elements(values.pending_assistant_frames(operation_id, response_id))


class _Run:
    """One open run."""

    def __init__(self, content: Content, operation_id: str, state: RunState) -> None:
        self._content = content
        self._id = operation_id
        self._state = state

    def violations(self) -> Violations:
        state = self._state
        if isinstance(state.control, CancelRequested) and (
            state.inbox.steer or state.inbox.follow_up
        ):
            yield f"§4.6: run {self._id} is cancelled and its queues are not drained"
        latest = state.latest_assistant_entry_id
        if latest is not None and not isinstance(self._message(latest), AssistantMessage):
            yield f"12: run {self._id} names {latest} as its latest response"
        reserved = reserved_ids(state)
        if reserved is not None:
            yield from self._reserved(*reserved)
        yield from _frames(self._content, self._id, None if reserved is None else reserved[0])
        yield from self._phase()
        if not isinstance(state.phase, ToolsPhase):
            for namespace in ("pi.pending.tool_output", "pi.op.tool_memo"):
                for key in self._owned(namespace):
                    yield f"30: {namespace}/{key} outlived its call"

    def _phase(self) -> Violations:
        phase = self._state.phase
        match phase:
            case StartingPhase() | AssistantPhase():
                return
            case CheckpointPhase(trigger_entry_id=trigger):
                if trigger not in self._content.entries:
                    yield f"12: run {self._id} was triggered by missing entry {trigger}"
            case DeferredPhase(deferred=deferred):
                yield from self._deferred_source(deferred.source_entry_id)
            case ToolsPhase(batch=batch):
                yield from self._batch(batch)
            case CompactionPhase(structural=structural):
                yield from _structural(self._content, self._id, structural, "compaction")
            case FailureDrainPhase(provenance=provenance):
                if isinstance(provenance, ResponseProvenance) and not isinstance(
                    self._message(provenance.entry_id), AssistantMessage
                ):
                    yield f"12: run {self._id} failed by {provenance.entry_id}"
            case _:
                assert_never(phase)

    def _owned(self, namespace: str) -> list[str]:
        return [key for key in self._content.keys(namespace) if key.startswith(f"{self._id}:")]

    def _message(self, entry_id: str) -> object:
        entry = self._content.entries.get(entry_id)
        return entry.message if isinstance(entry, MessageEntry) else None

    def _reserved(self, response_id: str, usage_id: str) -> Violations:
        content = self._content
        if response_id in content.entries or content.pending(response_id) is not None:
            yield f"15: reserved response {response_id} is there already"
        if usage_id in content.usage:
            yield f"15: reserved row {usage_id} is there already"

    def _deferred_source(self, source: str) -> Violations:
        message = self._message(source)
        if not isinstance(message, AssistantMessage) or message.deferred is None:
            yield f"12: run {self._id} redeems {source}, which defers nothing"

    def _batch(self, batch: ToolBatch) -> Violations:
        message = self._message(batch.assistant_entry_id)
        if not isinstance(message, AssistantMessage):
            yield f"12: run {self._id} runs tools of {batch.assistant_entry_id}"
            return
        # A source index is a position in the response's content.
        wanted = dict(tool_calls(message))
        if [call.source_index for call in batch.calls] != list(wanted):
            yield f"28: calls {batch.calls} for {list(wanted)}"
            return
        kinds = [type(call) for call in batch.calls]
        done = sum(kind is CallCompleted for kind in kinds)
        if any(kind is CallCompleted for kind in kinds[done:]):
            yield f"28: completed calls are no prefix: {kinds}"
        if self._state.settings.tool_execution == "sequential":
            active = [kind for kind in kinds[done:] if kind is not CallPlanned]
            if len(active) > 1 or (active and kinds[done] is CallPlanned):
                yield f"28: a sequential batch stands at {kinds}"
        if len({call.result_entry_id for call in batch.calls}) != len(batch.calls):
            yield f"27: two calls of {self._id} share an id"
        for call in batch.calls:
            yield from self._call(batch, call, wanted[call.source_index].id)

    def _call(self, batch: ToolBatch, call: ToolCallState, call_id: str) -> Violations:
        content, result_id = self._content, call.result_entry_id
        pending = content.pending(result_id)
        placed = self._message(result_id)
        arguments = content.has(
            values.operation_tool_args(self._id, batch.turn_id, call.source_index)
        )
        if not isinstance(call, CallPending):
            yield from self._not_running(result_id)
        match call:
            case CallPlanned():
                if pending is not None or placed is not None or arguments:
                    yield f"15: planned call {result_id} has content"
            case CallPending():
                if pending is not None or placed is not None:
                    yield f"15: running call {result_id} has an outcome"
                if not arguments:
                    yield f"12: running call {result_id} has no arguments"
            case CallOutcomeReady():
                staged = pending.payload if isinstance(pending, PendingMessage) else None
                if not isinstance(staged, ToolResultMessage) or staged.tool_call_id != call_id:
                    yield f"29: call {result_id} is ready with {pending}"
                if placed is not None:
                    yield f"29: call {result_id} is ready and placed"
            case CallCompleted():
                if not isinstance(placed, ToolResultMessage) or placed.tool_call_id != call_id:
                    yield f"28: call {result_id} is completed with {placed}"
                if pending is not None:
                    yield f"15: call {result_id} is completed and waits"
            case _:
                assert_never(call)

    def _not_running(self, result_id: str) -> Violations:
        if self._content.has(values.pending_tool_output(self._id, result_id)):
            yield f"30: call {result_id} is not running and has a checkpoint"
        if self._memos(result_id):
            yield f"29: call {result_id} is not running and has memos"

    def _memos(self, result_id: str) -> bool:
        prefix = values.operation_tool_memo_prefix(self._id, result_id)
        return any(key.startswith(prefix.key) for key in self._content.keys(prefix.namespace))
