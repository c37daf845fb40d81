"""The total durable state of an operation: every phase, and nothing that depends on history (§3.2)."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

import msgspec

from harness.errors import OperationKind
from harness.operation.durable import Durable, OperationError
from harness.settings import (
    CompactionSettings,
    LaneConfiguration,
    NormalizedRetryPolicy,
    QueueMode,
    ReplayPolicy,
    StreamOptions,
    ToolExecution,
)

# Acceptance metadata (§3.1)


class RunIntent(Durable, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """A run, and the entries that the caller's prompt became."""

    prompt_entry_ids: tuple[str, ...]


class CompactionIntent(Durable, frozen=True, kw_only=True, tag_field="kind", tag="compaction"):
    """A manual compaction."""

    custom_instructions: str | None = None


class NavigationIntent(Durable, frozen=True, kw_only=True, tag_field="kind", tag="navigation"):
    """A move of the lane's leaf to `target_id` (None: the root)."""

    target_id: str | None
    summarize: bool
    label: str | None = None
    custom_instructions: str | None = None


OperationIntent: TypeAlias = RunIntent | CompactionIntent | NavigationIntent


class OperationMeta(Durable, frozen=True, kw_only=True):
    """Immutable acceptance metadata. `started_at` is Unix milliseconds."""

    operation_id: str
    lane: str
    source_leaf_id: str | None
    started_at: int
    intent: OperationIntent


# Control (§4.6)


class Running(Durable, frozen=True, kw_only=True, tag_field="status", tag="running"):
    """Nobody asked to stop."""


class CancelRequested(
    Durable, frozen=True, kw_only=True, tag_field="status", tag="cancel_requested"
):
    """Cancellation is durable; the drained queue items keep their pending values until the end."""

    requested_at: int
    drained_steer: tuple[str, ...]
    drained_follow_up: tuple[str, ...]


Control: TypeAlias = Running | CancelRequested
RUNNING = Running()


# Continuations


class NeedAssistant(Durable, frozen=True, kw_only=True, tag_field="kind", tag="need_assistant"):
    """The run still owes an assistant turn."""

    overflow_recovery_used: bool


class MayFinish(Durable, frozen=True, kw_only=True, tag_field="kind", tag="may_finish"):
    """The run may end; with or without a final assistant message."""

    include_final_assistant: bool


Continuation: TypeAlias = NeedAssistant | MayFinish


# Assistant generation (§3.7)


class GenerationContext(Durable, frozen=True, kw_only=True):
    """What one generation step captured when it began."""

    step_id: str
    trigger_entry_id: str
    configuration: LaneConfiguration
    stream_options: StreamOptions
    retry_policy: NormalizedRetryPolicy
    overflow_recovery_used: bool


class GenerationReady(Durable, frozen=True, kw_only=True, tag_field="status", tag="ready"):
    """The next attempt may be prepared."""

    context: GenerationContext
    next_attempt: int


class GenerationPending(
    Durable, frozen=True, kw_only=True, tag_field="status", tag="effect_pending"
):
    """A request may have been sent; its response and ledger row have reserved ids."""

    context: GenerationContext
    attempt: int
    response_entry_id: str
    usage_id: str
    intended_output_limit: int
    context_window: int


class GenerationRetryWait(Durable, frozen=True, kw_only=True, tag_field="status", tag="retry_wait"):
    """The last attempt failed; the next one is allowed at `not_before` (Unix ms)."""

    context: GenerationContext
    next_attempt: int
    not_before: int
    error_message: str


Generation: TypeAlias = GenerationReady | GenerationPending | GenerationRetryWait


# Tools (§3.8)


class CallPlanned(Durable, frozen=True, kw_only=True, tag_field="status", tag="planned"):
    """Not cleared yet."""

    source_index: int
    result_entry_id: str


class CallPending(Durable, frozen=True, kw_only=True, tag_field="status", tag="effect_pending"):
    """The tool may be running or may have run."""

    source_index: int
    result_entry_id: str
    replay: ReplayPolicy


class CallOutcomeReady(Durable, frozen=True, kw_only=True, tag_field="status", tag="outcome_ready"):
    """The final result is staged and waits for its place in source order."""

    source_index: int
    result_entry_id: str
    terminate: bool


class CallCompleted(Durable, frozen=True, kw_only=True, tag_field="status", tag="completed"):
    """The result is an entry."""

    source_index: int
    result_entry_id: str
    terminate: bool


ToolCallState: TypeAlias = CallPlanned | CallPending | CallOutcomeReady | CallCompleted


class ToolBatch(Durable, frozen=True, kw_only=True):
    """The calls of one assistant message. Completed calls form a prefix."""

    assistant_entry_id: str
    configuration: LaneConfiguration
    turn_id: str
    calls: tuple[ToolCallState, ...]


# Deferred generation


class DeferredSuspended(Durable, frozen=True, kw_only=True, tag_field="status", tag="suspended"):
    """The provider works in the background; `poll` counts completed polls."""

    step_id: str
    source_entry_id: str
    poll: int
    configuration: LaneConfiguration
    stream_options: StreamOptions


class DeferredPending(Durable, frozen=True, kw_only=True, tag_field="status", tag="effect_pending"):
    """A poll may have been sent."""

    step_id: str
    source_entry_id: str
    poll: int
    response_entry_id: str
    usage_id: str
    configuration: LaneConfiguration
    stream_options: StreamOptions


Deferred: TypeAlias = DeferredSuspended | DeferredPending


# Structural work (§3.9)

SummaryKind: TypeAlias = Literal["compaction", "branch_summary"]
CompactionReason: TypeAlias = Literal["manual", "threshold", "overflow"]


class SummaryContext(Durable, frozen=True, kw_only=True):
    """What one summary generation captured when it began."""

    task_id: str
    result_entry_id: str
    kind: SummaryKind
    configuration: LaneConfiguration
    stream_options: StreamOptions
    retry_policy: NormalizedRetryPolicy
    reason: CompactionReason | None = None


class SummaryRequest(Durable, frozen=True, kw_only=True):
    """The nested provider request that may have been sent."""

    index: int
    usage_id: str


class SummaryReady(Durable, frozen=True, kw_only=True, tag_field="status", tag="ready"):
    """The next attempt may be prepared."""

    context: SummaryContext
    next_attempt: int


class SummaryPending(Durable, frozen=True, kw_only=True, tag_field="status", tag="effect_pending"):
    """An attempt is under way; `usage_ids` are the ledger rows it already wrote."""

    context: SummaryContext
    attempt: int
    usage_ids: tuple[str, ...]
    request: SummaryRequest | None = None


class SummaryRetryWait(Durable, frozen=True, kw_only=True, tag_field="status", tag="retry_wait"):
    """The last attempt failed; the next one is allowed at `not_before` (Unix ms)."""

    context: SummaryContext
    next_attempt: int
    not_before: int
    error_message: str


SummaryGeneration: TypeAlias = SummaryReady | SummaryPending | SummaryRetryWait


class Deciding(Durable, frozen=True, kw_only=True, tag_field="status", tag="deciding"):
    """The decision hook has not been consumed yet."""

    task_id: str


class Generating(Durable, frozen=True, kw_only=True, tag_field="status", tag="generating"):
    """A summary is being generated; the decision hook never runs again."""

    task_id: str
    generation: SummaryGeneration


StructuralDecision: TypeAlias = Deciding | Generating


# Run phases


class StartingPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="starting"):
    """Accepted; `before_run` has not been consumed."""


class CheckpointPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """Between turns. `trigger_entry_id` is the entry that caused this boundary."""

    continuation: Continuation
    trigger_entry_id: str
    threshold_checked_trigger_entry_id: str | None = None
    skip_inbox_once: bool = False


class AssistantPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="assistant"):
    """An assistant response is being generated."""

    generation: Generation


class ToolsPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="tools"):
    """A tool batch is under way."""

    batch: ToolBatch


class CompactionPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="compaction"):
    """The run compacts its own context, then goes on at `resume_after`."""

    reason: Literal["threshold", "overflow"]
    structural: StructuralDecision
    resume_after: CheckpointPhase


class DeferredPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="deferred"):
    """The provider finishes the response in the background."""

    deferred: Deferred


class ResponseProvenance(Durable, frozen=True, kw_only=True, tag_field="kind", tag="response"):
    """The failure came from this settled response."""

    entry_id: str


class StructuralProvenance(Durable, frozen=True, kw_only=True, tag_field="kind", tag="structural"):
    """The failure came from this structural task."""

    task_id: str


class ConfigurationProvenance(
    Durable, frozen=True, kw_only=True, tag_field="kind", tag="configuration"
):
    """The failure came from a missing model or tool definition."""


FailureProvenance: TypeAlias = ResponseProvenance | StructuralProvenance | ConfigurationProvenance


class FailureDrainPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="failure_drain"):
    """The run fails unless queued user input rescues it."""

    error: OperationError
    provenance: FailureProvenance


RunPhase: TypeAlias = (
    StartingPhase
    | CheckpointPhase
    | AssistantPhase
    | ToolsPhase
    | CompactionPhase
    | DeferredPhase
    | FailureDrainPhase
)


class RunSettings(Durable, frozen=True, kw_only=True):
    """Global settings as captured at acceptance."""

    compaction: CompactionSettings
    steering_mode: QueueMode
    follow_up_mode: QueueMode
    tool_execution: ToolExecution


class Inbox(Durable, frozen=True, kw_only=True):
    """Reserved entry ids of queued items; the payloads are pending values."""

    steer: tuple[str, ...]
    follow_up: tuple[str, ...]
    writes: tuple[str, ...]


EMPTY_INBOX = Inbox(steer=(), follow_up=(), writes=())


class RunState(Durable, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """The complete state of a run."""

    control: Control
    settings: RunSettings
    phase: RunPhase
    inbox: Inbox
    latest_assistant_entry_id: str | None


class CompactionState(Durable, frozen=True, kw_only=True, tag_field="kind", tag="compaction"):
    """The complete state of a manual compaction."""

    control: Control
    structural: StructuralDecision
    custom_instructions: str | None = None


class ReadyToCommit(Durable, frozen=True, kw_only=True, tag_field="kind", tag="ready_to_commit"):
    """A plain navigation: one transaction does it."""


class SummaryPhase(Durable, frozen=True, kw_only=True, tag_field="kind", tag="summary"):
    """A summarized navigation is deciding or generating."""

    structural: StructuralDecision


NavigationPhase: TypeAlias = ReadyToCommit | SummaryPhase


class NavigationState(Durable, frozen=True, kw_only=True, tag_field="kind", tag="navigation"):
    """The complete state of a navigation; `summarize` agrees with the phase."""

    control: Control
    target_id: str | None
    summarize: bool
    phase: NavigationPhase
    label: str | None = None
    custom_instructions: str | None = None


OperationState: TypeAlias = RunState | CompactionState | NavigationState


class Operation(msgspec.Struct, frozen=True):
    """The owned projection of an open operation; process-local, never stored as one value."""

    meta: OperationMeta
    state: OperationState

    @property
    def id(self) -> str:
        """The operation's id."""
        return self.meta.operation_id

    @property
    def kind(self) -> OperationKind:
        """The operation's kind."""
        match self.state:
            case RunState():
                return "run"
            case CompactionState():
                return "compaction"
            case NavigationState():
                return "navigation"
            case _:
                assert_never(self.state)

    @property
    def cancelling(self) -> bool:
        """Whether cancellation is durable."""
        return isinstance(self.state.control, CancelRequested)
