"""Records every transaction in order, in words that a test can state: the write-order microscope (§9.3 B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from harness.context import Context
from harness.entries import CustomPayload, EntryPayload, MessagePayload, payload_type
from harness.messages import AgentMessage, AssistantMessage, ToolResultMessage
from harness.operation.lane_state import LaneState
from harness.operation.payloads import PendingCustom, PendingMessage
from harness.operation.state import (
    AssistantPhase,
    CallCompleted,
    CallOutcomeReady,
    CallPending,
    CallPlanned,
    CancelRequested,
    CheckpointPhase,
    CompactionPhase,
    CompactionState,
    Deciding,
    DeferredPending,
    DeferredPhase,
    DeferredSuspended,
    FailureDrainPhase,
    Generating,
    Generation,
    GenerationPending,
    GenerationReady,
    GenerationRetryWait,
    MayFinish,
    NavigationState,
    NeedAssistant,
    OperationState,
    ReadyToCommit,
    RunPhase,
    RunState,
    StartingPhase,
    StructuralDecision,
    SummaryPending,
    SummaryPhase,
    SummaryReady,
    SummaryRetryWait,
    ToolCallState,
    ToolsPhase,
)
from harness.storage.protocol import CommitResult, Storage
from harness.storage.writes import (
    AppendList,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from harness.testing.decorated import StorageDecorator

Transaction = tuple[str, ...]


class InstrumentedStorage(StorageDecorator):
    """Keeps what was committed. `transactions` are described, `raw` are the writes themselves.

    `journal`, when given, gets a line per commit at the moment it is durable, so that commits stand
    in order with events, hooks and effects that a test writes into the same list.
    """

    def __init__(self, inner: Storage, journal: list[str] | None = None) -> None:
        super().__init__(inner)
        self.raw: list[tuple[Write, ...]] = []
        self.journal = journal

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """Commit and record."""
        result = await self.inner.commit(writes, context)
        self.raw.append(tuple(writes))
        if self.journal is not None:
            self.journal.append(f"TX {'; '.join(describe_all(writes))}")
        return result

    @property
    def transactions(self) -> list[Transaction]:
        """Every transaction so far, described."""
        return [describe_all(writes) for writes in self.raw]

    def forget(self) -> None:
        """Start recording anew."""
        self.raw.clear()


def describe_all(writes: Sequence[Write]) -> Transaction:
    """The writes of one transaction, in order."""
    return tuple(describe(write) for write in writes)


def describe(write: Write) -> str:
    """One write in words: verb, place, and the kind of content."""
    match write:
        case InsertEntry(entry=entry):
            return f"entry {describe_payload(entry.payload)}"
        case InsertUsage():
            return "usage"
        case SetValue(namespace=namespace, value=stored):
            detail = _describe_value(stored)
            return f"set {namespace} {detail}" if detail else f"set {namespace}"
        case DeleteValue(namespace=namespace):
            return f"delete {namespace}"
        case AppendList(namespace=namespace, value=element):
            tag = getattr(type(element), "__struct_config__", None)
            return f"append {namespace} {tag.tag}" if tag is not None else f"append {namespace}"
        case DeleteList(namespace=namespace):
            return f"drop {namespace}"
        case _:
            assert_never(write)


def describe_payload(payload: EntryPayload) -> str:
    """The kind of an entry."""
    match payload:
        case MessagePayload(message=message):
            return describe_message(message)
        case CustomPayload(custom_type=custom_type):
            return f"custom:{custom_type}"
        case _:
            return payload_type(payload)


def describe_message(message: AgentMessage) -> str:
    """Role, and how an assistant or tool message ended."""
    match message:
        case AssistantMessage(stop_reason=reason):
            return f"assistant:{reason}"
        case ToolResultMessage(is_error=is_error):
            return "toolResult:error" if is_error else "toolResult"
        case _:
            return str(message.__struct_config__.tag)


# Any: whatever an address may hold.
def _describe_value(stored: Any) -> str:
    match stored:
        case RunState() | CompactionState() | NavigationState():
            return describe_state(stored)
        case LaneState(current_operation_id=current):
            return "idle" if current is None else "busy"
        case PendingMessage(payload=message):
            return describe_message(message)
        case PendingCustom(custom_type=custom_type):
            return f"custom:{custom_type}"
        case _:
            outcome = getattr(stored, "outcome", None)
            return str(outcome) if outcome is not None else ""


def describe_state(state: OperationState) -> str:
    """The phase of an operation, with a mark when cancellation is durable."""
    match state:
        case RunState(phase=phase):
            words = _phase(phase)
        case CompactionState(structural=structural):
            words = f"compaction {_structural(structural)}"
        case NavigationState(phase=ReadyToCommit()):
            words = "navigation ready"
        case NavigationState(phase=SummaryPhase(structural=structural)):
            words = f"navigation {_structural(structural)}"
        case NavigationState():
            words = "navigation"
        case _:
            assert_never(state)
    return f"{words} (cancelling)" if isinstance(state.control, CancelRequested) else words


def _phase(phase: RunPhase) -> str:
    match phase:
        case StartingPhase():
            return "starting"
        case CheckpointPhase(continuation=NeedAssistant()):
            return "checkpoint need_assistant"
        case CheckpointPhase(continuation=MayFinish()):
            return "checkpoint may_finish"
        case CheckpointPhase():
            return "checkpoint"
        case AssistantPhase(generation=generation):
            return f"assistant {_generation(generation)}"
        case ToolsPhase(batch=batch):
            return f"tools [{' '.join(_call(call) for call in batch.calls)}]"
        case CompactionPhase(reason=reason, structural=structural):
            return f"{reason} compaction {_structural(structural)}"
        case DeferredPhase(deferred=DeferredSuspended(poll=poll)):
            return f"deferred suspended {poll}"
        case DeferredPhase(deferred=DeferredPending(poll=poll)):
            return f"deferred pending {poll}"
        case DeferredPhase():
            return "deferred"
        case FailureDrainPhase(error=error):
            return f"failure_drain {error.code}"
        case _:
            assert_never(phase)


def _generation(generation: Generation) -> str:
    match generation:
        case GenerationReady(next_attempt=attempt):
            return f"ready {attempt}"
        case GenerationPending(attempt=attempt):
            return f"pending {attempt}"
        case GenerationRetryWait(next_attempt=attempt):
            return f"retry_wait {attempt}"
        case _:
            assert_never(generation)


def _call(call: ToolCallState) -> str:
    match call:
        case CallPlanned():
            return "planned"
        case CallPending():
            return "pending"
        case CallOutcomeReady():
            return "ready"
        case CallCompleted():
            return "completed"
        case _:
            assert_never(call)


def _structural(structural: StructuralDecision) -> str:
    match structural:
        case Deciding():
            return "deciding"
        case Generating(generation=SummaryReady(next_attempt=attempt)):
            return f"ready {attempt}"
        case Generating(generation=SummaryPending(attempt=attempt, request=None)):
            return f"pending {attempt}"
        case Generating(generation=SummaryPending(attempt=attempt)):
            return f"requesting {attempt}"
        case Generating(generation=SummaryRetryWait(next_attempt=attempt)):
            return f"retry_wait {attempt}"
        case Generating():
            return "generating"
        case _:
            assert_never(structural)
