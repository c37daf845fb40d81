"""What callers learn: admissions, outcomes, waits, execution info and snapshots (§5.1, §5.4)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from harness.codec import JsonValue
from harness.entries import BranchSummaryEntry, CompactionEntry, Entry, EntryType
from harness.errors import OperationKind
from harness.messages import AgentMessage, AgentToolResult, AssistantMessage, DeferredHandle
from harness.operation.durable import OperationError
from harness.operation.events import QueuedItem
from harness.operation.lane_state import LaneLastResult
from harness.settings import ModelIdentity

OperationStatus: TypeAlias = Literal["running", "open", "aborting"]


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Common encoding rules of results."""


class OperationAdmission(_Wire, frozen=True, kw_only=True):
    """An operation is durably accepted. `started_at` is Unix milliseconds."""

    operation_id: str
    kind: OperationKind
    started_at: int


class RunOutcome(_Wire, frozen=True, kw_only=True, tag_field="operation", tag="run"):
    """How a run ended, or that it waits for a background response.

    Final assistant fields are both present or both absent; `error` exactly when failed,
    `deferred` exactly when suspended.
    """

    run_id: str
    kind: Literal["completed", "aborted", "failed", "suspended"]
    leaf_id: str
    final_entry_id: str | None = None
    final_message: AssistantMessage | None = None
    error: OperationError | None = None
    deferred: DeferredHandle | None = None


class CompactionOutcome(_Wire, frozen=True, kw_only=True, tag_field="operation", tag="compaction"):
    """How a manual compaction ended."""

    run_id: str
    kind: Literal["completed", "declined", "aborted", "failed"]
    leaf_id: str
    entry: CompactionEntry | None = None
    error: OperationError | None = None


class NavigationOutcome(_Wire, frozen=True, kw_only=True, tag_field="operation", tag="navigation"):
    """How a navigation ended; `leaf_id` is where the lane stands now."""

    run_id: str
    kind: Literal["completed", "declined", "aborted", "failed"]
    leaf_id: str | None
    old_leaf_id: str | None = None
    summary_entry: BranchSummaryEntry | None = None
    error: OperationError | None = None


OperationOutcome: TypeAlias = RunOutcome | CompactionOutcome | NavigationOutcome


class DriveSettled(_Wire, frozen=True, kw_only=True, tag_field="kind", tag="settled"):
    """The operation is over."""

    operation_id: str
    outcome: OperationOutcome


class DriveWaitingRetry(_Wire, frozen=True, kw_only=True, tag_field="kind", tag="waiting_retry"):
    """The operation may go on at `not_before` (Unix ms)."""

    operation_id: str
    not_before: int


class DriveWaitingDeferred(
    _Wire, frozen=True, kw_only=True, tag_field="kind", tag="waiting_deferred"
):
    """The operation waits for a provider that works in the background."""

    operation_id: str
    leaf_id: str
    source_entry_id: str
    deferred: DeferredHandle
    poll: int


DriveOutcome: TypeAlias = DriveSettled | DriveWaitingRetry | DriveWaitingDeferred


class AbortRequest(_Wire, frozen=True, kw_only=True):
    """Cancellation is durable; `newly_requested` says whether this call made it so."""

    operation_id: str
    newly_requested: bool
    steer: tuple[AgentMessage, ...] = ()
    follow_up: tuple[AgentMessage, ...] = ()


class QueuedEntry(_Wire, frozen=True, kw_only=True):
    """A queued item's entry id."""

    entry_id: str


class CancelQueued(_Wire, frozen=True, kw_only=True):
    """What became of a queued item; `not_found` is success for a repeated cancel."""

    kind: Literal["cancelled", "already_consumed", "not_found"]


class CurrentOperation(_Wire, frozen=True, kw_only=True):
    """The open operation of a lane. `captured_model` is the identity its current step captured."""

    id: str
    kind: OperationKind
    started_at: int
    status: OperationStatus
    captured_model: ModelIdentity | None = None


class LaneExecution(_Wire, frozen=True, kw_only=True):
    """A coherent observation of a lane's small state."""

    lane: str
    leaf_id: str | None
    configured_model: ModelIdentity
    current: CurrentOperation | None
    last_result: LaneLastResult | None = None


class LaneInfo(_Wire, frozen=True, kw_only=True):
    """A lane in an inventory."""

    name: str
    leaf_id: str | None
    operation: CurrentOperation | None


class OpenOperation(_Wire, frozen=True, kw_only=True):
    """One open operation found at attachment; an inventory item, not a reservation."""

    lane: str
    operation_id: str
    kind: OperationKind
    started_at: int
    aborting: bool = False


class RetryInfo(_Wire, frozen=True, kw_only=True):
    """A scheduled retry, for display."""

    attempt: int
    max_attempts: int
    next_attempt_at: int


class DeferredInfo(_Wire, frozen=True, kw_only=True):
    """A background response, for display."""

    handle: DeferredHandle
    poll: int


class DrainedItems(_Wire, frozen=True, kw_only=True):
    """Queue contents that an abort drained."""

    steer: tuple[QueuedItem, ...]
    follow_up: tuple[QueuedItem, ...]


class RunningTool(_Wire, frozen=True, kw_only=True):
    """A tool that may be running, with its latest known progress."""

    tool_call_id: str
    tool_name: str
    args: dict[str, JsonValue]
    partial_result: AgentToolResult | None = None


class OperationSnapshot(_Wire, frozen=True, kw_only=True):
    """The open operation as a display needs it."""

    id: str
    kind: OperationKind
    started_at: int
    status: OperationStatus
    running_tools: tuple[RunningTool, ...]
    retry: RetryInfo | None = None
    deferred: DeferredInfo | None = None
    drained: DrainedItems | None = None
    streaming_message: AssistantMessage | None = None


class QueueContents(_Wire, frozen=True, kw_only=True):
    """All queued messages of a lane."""

    steer: tuple[QueuedItem, ...]
    follow_up: tuple[QueuedItem, ...]
    next_run: tuple[QueuedItem, ...]


class PendingWrite(_Wire, frozen=True, kw_only=True):
    """A tree write that waits for the next checkpoint."""

    entry_id: str
    type: EntryType
    custom_type: str | None = None
    message: AgentMessage | None = None
    data: JsonValue = None


class LaneSnapshot(_Wire, frozen=True, kw_only=True):
    """Everything needed to render a lane; the transcript starts at the newest compaction."""

    lane: str
    transcript: tuple[Entry, ...]
    leaf_id: str | None
    operation: OperationSnapshot | None
    queues: QueueContents
    pending_writes: tuple[PendingWrite, ...]
    faulted: bool
    last_result: LaneLastResult | None = None


class SessionSnapshot(_Wire, frozen=True, kw_only=True):
    """The lanes of a session."""

    lanes: tuple[LaneInfo, ...]
    faulted: bool
