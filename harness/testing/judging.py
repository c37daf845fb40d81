"""What must be true of a session whatever died, and what may differ from a run in which nothing did (§9.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, assert_never

from harness.context import BACKGROUND
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
)
from harness.execution.tools import CHECKPOINT_NOTE, INTERRUPTED_TOOL
from harness.messages import (
    AgentMessage,
    AgentToolResult,
    AssistantContent,
    AssistantMessage,
    InputContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    tool_calls,
)
from harness.operation import values
from harness.operation.state import (
    AssistantPhase,
    CallPending,
    CancelRequested,
    DeferredPending,
    DeferredPhase,
    GenerationPending,
    OperationState,
    RunState,
    ToolsPhase,
)
from harness.runtime.procedures.streaming import read_frames
from harness.session.projection import in_context
from harness.session.session import MAIN_LANE
from harness.settings import ReplayPolicy
from harness.storage.address import Value, value
from harness.storage.protocol import BranchScan, EntryScan, Storage, UsageScan
from harness.testing.instrumented import describe_state
from harness.usage import ZERO_USAGE, Usage, add_usage

OPERATION_NAMESPACES = (
    "pi.op.meta",
    "pi.op.state",
    "pi.op.tool_args",
    "pi.op.tool_memo",
    "pi.op.preparation",
    "pi.pending.tool_output",
)

# Any: canonical forms are nested tuples of plain values, made to be compared and printed.
Canonical: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class LostCall:
    """A tool call whose outcome was uncertain when a process died."""

    result_entry_id: str
    replay: ReplayPolicy
    checkpoint: AgentToolResult | None


@dataclass(frozen=True, slots=True)
class Wreck:
    """What a dead process left uncertain."""

    state: str
    cancelling: bool
    response_id: str | None = None
    partial: AssistantMessage | None = None
    calls: tuple[LostCall, ...] = ()
    # A lost poll is replaced by another one, and settles only under cancellation.
    is_poll: bool = False


@dataclass(frozen=True, slots=True)
class EndState:
    """A finished session in comparable form."""

    result: Canonical
    entries: tuple[tuple[str, Canonical], ...]  # id and content, root first
    next_run: int


async def read_wreck(storage: Storage, lane: str = MAIN_LANE) -> Wreck | None:
    """Look at what is durable after a death; None when the lane is idle."""
    state = await operation_state(storage, lane)
    if state is None:
        return None
    words = describe_state(state)
    cancelling = isinstance(state.control, CancelRequested)
    if not isinstance(state, RunState):
        return Wreck(words, cancelling)
    operation_id = await _current(storage, lane)
    assert operation_id is not None
    phase = state.phase
    if isinstance(phase, AssistantPhase) and isinstance(phase.generation, GenerationPending):
        response_id = phase.generation.response_entry_id
        partial = await read_frames(storage, operation_id, response_id, BACKGROUND)
        return Wreck(words, cancelling, response_id, partial)
    if isinstance(phase, DeferredPhase) and isinstance(phase.deferred, DeferredPending):
        response_id = phase.deferred.response_entry_id
        partial = await read_frames(storage, operation_id, response_id, BACKGROUND)
        return Wreck(words, cancelling, response_id, partial, is_poll=True)
    if isinstance(phase, ToolsPhase):
        calls: list[LostCall] = []
        for call in phase.batch.calls:
            if isinstance(call, CallPending):
                stored = await storage.get_value(
                    values.pending_tool_output(operation_id, call.result_entry_id), BACKGROUND
                )
                saved = None if stored is None else stored.value
                calls.append(LostCall(call.result_entry_id, call.replay, saved))
        return Wreck(words, cancelling, calls=tuple(calls))
    return Wreck(words, cancelling)


async def _current(storage: Storage, lane: str) -> str | None:
    stored = await storage.get_value(values.lane_state(lane), BACKGROUND)
    return None if stored is None else stored.value.current_operation_id


async def operation_state(storage: Storage, lane: str = MAIN_LANE) -> OperationState | None:
    """The durable state of the lane's open operation."""
    operation_id = await _current(storage, lane)
    if operation_id is None:
        return None
    stored = await storage.get_value(values.operation_state(operation_id), BACKGROUND)
    assert stored is not None
    return stored.value


async def branch(storage: Storage, lane: str = MAIN_LANE) -> list[Entry]:
    """Every entry of a lane, root first."""
    leaf = await storage.get_value(values.lane_leaf(lane), BACKGROUND)
    if leaf is None or leaf.value is None:
        return []
    return await storage.scan_branch(BranchScan(start=leaf.value, order="oldestFirst"), BACKGROUND)


async def read_end(storage: Storage, lane: str = MAIN_LANE) -> EndState:
    """The comparable form of a lane."""
    last = await storage.get_value(values.lane_last_result(lane), BACKGROUND)
    state = await storage.get_value(values.lane_state(lane), BACKGROUND)
    result: Canonical = ()
    if last is not None:
        error = last.value.error
        completion = getattr(last.value, "run_completion", None)
        result = (
            type(last.value).__name__,
            last.value.outcome,
            completion,
            error and error.code,
            getattr(last.value, "final_assistant_entry_id", None) is not None,
        )
    entries = await branch(storage, lane)
    return EndState(
        result=result,
        entries=tuple((entry.id, canonical_entry(entry)) for entry in entries),
        next_run=0 if state is None else len(state.value.pending_next_run),
    )


def canonical_entry(entry: Entry) -> Canonical:
    """An entry without ids and times."""
    match entry:
        case MessageEntry(message=message, terminate=terminate):
            return (*canonical(message), "terminate") if terminate else canonical(message)
        case CompactionEntry():
            tail = tuple(canonical(message) for message in entry.retained_tail)
            return ("compaction", entry.summary, tail, entry.from_hook)
        case BranchSummaryEntry():
            return ("branch_summary", entry.summary, entry.from_hook)
        case CustomEntry():
            return ("custom", entry.custom_type, str(entry.data))
        case _:
            assert_never(entry)


def canonical(message: AgentMessage) -> Canonical:
    """A message without ids and times."""
    match message:
        case UserMessage(content=content):
            return ("user", content if isinstance(content, str) else _parts(content))
        case AssistantMessage():
            dropped = () if in_context(message) else ("dropped",)
            return ("assistant", *dropped, message.stop_reason, _parts(message.content))
        case ToolResultMessage():
            return (
                "toolResult",
                message.tool_call_id,
                message.tool_name,
                _parts(message.content),
                message.is_error,
            )
        case _:
            return (type(message).__name__, str(message))


def _parts(content: Sequence[AssistantContent | InputContent]) -> Canonical:
    return tuple(_part(part) for part in content)


def _part(part: AssistantContent | InputContent) -> Canonical:
    match part:
        case TextContent(text=text):
            return ("text", text)
        case ThinkingContent(thinking=thinking):
            return ("thinking", thinking)
        case ToolCall(id=id, name=name, arguments=arguments):
            return ("call", id, name, str(arguments))
        case _:
            return (type(part).__name__,)


async def invariant_problems(
    storage: Storage, frame_keys: set[str], lane: str = MAIN_LANE
) -> list[str]:
    """What §9.1 forbids in a session whose operations are over, and is so all the same."""
    problems = await leftovers(storage, frame_keys, lane)
    problems += await ledger_problems(storage)
    entries = await branch(storage, lane)
    problems += pairing_problems(entries)
    if [e.seq for e in entries] != sorted(e.seq for e in entries):
        problems.append("sequence numbers do not grow along the branch")
    return problems


async def leftovers(storage: Storage, frame_keys: set[str], lane: str = MAIN_LANE) -> list[str]:
    """Operation-owned values and lists that outlived their operation (§3.13)."""
    problems: list[str] = []
    state = await storage.get_value(values.lane_state(lane), BACKGROUND)
    if state is None or state.value.current_operation_id is not None:
        problems.append("the lane is not idle")
    for namespace in OPERATION_NAMESPACES:
        keys = await _keys(storage, namespace)
        problems += [f"left over: {namespace}/{key}" for key in keys]
    kept = set(state.value.pending_next_run) if state is not None else set[str]()
    waiting = await _keys(storage, "pi.pending.entry")
    problems += [f"left over: pi.pending.entry/{key}" for key in waiting if key not in kept]
    for key in frame_keys:
        operation_id, response_id = key.split(":", 1)
        address = values.pending_assistant_frames(operation_id, response_id)
        if await storage.read_list(address, None, BACKGROUND):
            problems.append(f"left over: frames of {key}")
    return problems


async def _keys(storage: Storage, namespace: str) -> list[str]:
    # Any: only the keys are looked at.
    prefix: Value[Any] = value(object, namespace)
    return [stored.address.key for stored in await storage.scan_values(prefix, BACKGROUND)]


async def ledger_problems(storage: Storage) -> list[str]:
    """Where the ledger, the maintained totals and the tree disagree (§1.6)."""
    problems: list[str] = []
    rows = await storage.scan_usage(UsageScan(), BACKGROUND)
    stats = await storage.get_stats(BACKGROUND)
    total: Usage = ZERO_USAGE
    for row in rows:
        total = add_usage(total, row.usage)
    if total != stats.usage:
        problems.append(f"the ledger sums to {total}, the totals say {stats.usage}")
    entries = await storage.scan_entries(EntryScan(), BACKGROUND)
    messages = [entry for entry in entries if isinstance(entry, MessageEntry)]
    if stats.message_count != len(messages):
        problems.append(f"{len(messages)} messages, the totals say {stats.message_count}")
    charged = [row.entry_id for row in rows]
    problems += [
        f"response {entry.id} has {charged.count(entry.id)} ledger rows"
        for entry in messages
        if isinstance(entry.message, AssistantMessage) and charged.count(entry.id) != 1
    ]
    return problems


def pairing_problems(entries: Sequence[Entry]) -> list[str]:
    """Calls without exactly one result, results without a call, results out of source order."""
    problems: list[str] = []
    expected: list[str] = []
    for entry in entries:
        message = entry.message if isinstance(entry, MessageEntry) else None
        if isinstance(message, ToolResultMessage):
            if not expected or expected[0] != message.tool_call_id:
                problems.append(f"result of {message.tool_call_id} stands where {expected} is due")
            else:
                expected.pop(0)
        elif isinstance(message, AssistantMessage) and in_context(message):
            if expected:
                problems.append(f"calls without result: {expected}")
            expected = [call.id for _, call in tool_calls(message)]
    if expected:
        problems.append(f"calls without result: {expected}")
    return problems


def run_problems(
    runs: dict[str, int], replay_of: dict[str, ReplayPolicy], deaths: int
) -> list[str]:
    """Tool calls that began more often than their declaration allows."""
    problems: list[str] = []
    for invocation, count in runs.items():
        allowed = 1 if replay_of[invocation] == "never" else 1 + deaths
        if count > allowed:
            problems.append(f"a {replay_of[invocation]} tool call began {count} times")
    return problems


def differences(expected: EndState, found: EndState, wrecks: Sequence[Wreck]) -> list[str]:
    """How an end state differs from the uninterrupted one beyond what the wrecks explain.

    A request that was under way leaves one extra response: an error, or the abort itself. A tool
    call that was under way and may not be repeated has a result that says it was interrupted.
    Nothing else may differ.
    """
    problems: list[str] = []
    entries = dict(found.entries)
    order = [entry_id for entry_id, _ in found.entries]
    aborted_by_recovery = False
    for wreck in {wreck.response_id: wreck for wreck in wrecks}.values():
        if wreck.response_id is not None and wreck.response_id in entries:
            content = entries.pop(wreck.response_id)
            order.remove(wreck.response_id)
            partial = () if wreck.partial is None else _parts(wreck.partial.content)
            if content[:2] != ("assistant", "dropped") or content[-1] != partial:
                problems.append(f"a lost response settled as {content}, saved was {partial}")
            aborted_by_recovery |= content[2] == "aborted"
        elif wreck.response_id is not None and not wreck.is_poll:
            problems.append(f"a lost response was never settled ({wreck.state})")
    wanted = list(expected.entries)
    if aborted_by_recovery:
        wanted = [(i, content) for i, content in wanted if content[2:3] != ("aborted",)]
    lost = {call.result_entry_id: call for wreck in wrecks for call in wreck.calls}
    if len(order) != len(wanted):
        problems.append(f"{len(order)} entries instead of {len(wanted)}")
        return [*problems, f"expected {[c for _, c in wanted]}", f"found {list(entries.values())}"]
    for entry_id, (_, content) in zip(order, wanted, strict=True):
        problems += _entry_difference(entries[entry_id], content, lost.get(entry_id))
    if expected.result != found.result:
        problems.append(f"result {found.result} instead of {expected.result}")
    if expected.next_run != found.next_run:
        problems.append(f"{found.next_run} queued for the next run, not {expected.next_run}")
    return problems


def _entry_difference(found: Canonical, wanted: Canonical, lost: LostCall | None) -> list[str]:
    if found == wanted:
        if lost is not None and lost.replay == "never":
            return [f"a lost call that may not be repeated has a result: {found}"]
        return []
    if lost is None or found[:3] != wanted[:3]:
        return [f"found {found} instead of {wanted}"]
    saved = () if lost.checkpoint is None else _parts(lost.checkpoint.content)
    note = INTERRUPTED_TOOL if lost.checkpoint is None else CHECKPOINT_NOTE + INTERRUPTED_TOOL
    if found[3:] != ((*saved, ("text", note)), True):
        return [f"a lost call ended as {found}, saved was {saved}"]
    return []
