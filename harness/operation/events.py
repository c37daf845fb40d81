"""The events of a harness: passive reports of what happened, one flat tagged union (§5.5).

Lifecycle events carry their lane; `recovery` marks lifecycle emitted for orphan recovery or replay.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from harness.codec import JsonValue
from harness.entries import BranchSummaryEntry, CompactionEntry, Entry, EntryType
from harness.frames import AssistantMessageEvent
from harness.messages import (
    AgentMessage,
    AgentToolResult,
    AssistantMessage,
    DeferredHandle,
    ToolResultMessage,
)
from harness.operation.durable import OperationError
from harness.operation.lane_state import Outcome
from harness.operation.state import CompactionReason
from harness.usage import Usage, UsageRow


class _Event(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"
):
    """Common encoding rules of events."""


class _LaneEvent(_Event, frozen=True, kw_only=True):
    """An event of one lane."""

    lane: str
    recovery: bool = False


class QueuedItem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A queued message and the entry id it will have."""

    entry_id: str
    message: AgentMessage


# Run lifecycle


class RunStart(_LaneEvent, frozen=True, kw_only=True, tag="run_start"):
    """A run was accepted."""

    run_id: str


class RunResume(_LaneEvent, frozen=True, kw_only=True, tag="run_resume"):
    """The application asked to resume an open operation."""

    run_id: str


class RunSuspend(_LaneEvent, frozen=True, kw_only=True, tag="run_suspend"):
    """The run waits for a provider that works in the background."""

    run_id: str
    reason: Literal["deferred"]
    deferred: DeferredHandle


class RunAbort(_LaneEvent, frozen=True, kw_only=True, tag="run_abort"):
    """Cancellation of a run is durable; the drained queue contents come with it."""

    run_id: str
    steer: tuple[AgentMessage, ...]
    follow_up: tuple[AgentMessage, ...]


class RunEnd(_LaneEvent, frozen=True, kw_only=True, tag="run_end"):
    """A run is over. `error` is present exactly when it failed."""

    run_id: str
    leaf_id: str | None
    outcome: Literal["completed", "aborted", "failed"]
    error: OperationError | None = None
    final_entry_id: str | None = None
    final_message: AssistantMessage | None = None


class Fault(_Event, frozen=True, kw_only=True, tag="fault"):
    """The harness stopped; the session must be opened again."""

    code: str
    message: str


class HandlerError(_Event, frozen=True, kw_only=True, tag="handler_error"):
    """A hook or an event listener raised."""

    error: str
    kind: Literal["hook", "event"]
    name: str
    stack: str | None = None
    lane: str | None = None
    recovery: bool = False


# Turns and retries


class TurnStart(_LaneEvent, frozen=True, kw_only=True, tag="turn_start"):
    """An assistant turn began."""

    run_id: str
    turn_id: str


class TurnEnd(_LaneEvent, frozen=True, kw_only=True, tag="turn_end"):
    """An assistant turn and its tool batch are over."""

    run_id: str
    turn_id: str
    message: AssistantMessage
    tool_results: tuple[ToolResultMessage, ...]


class RetryScheduled(_LaneEvent, frozen=True, kw_only=True, tag="retry_scheduled"):
    """An attempt failed and another is scheduled; `delay_ms` from now."""

    run_id: str
    step: str
    attempt: int
    max_attempts: int
    delay_ms: int
    error_message: str


class RetryStart(_LaneEvent, frozen=True, kw_only=True, tag="retry_start"):
    """A repeated attempt begins."""

    run_id: str
    step: str
    attempt: int


class RetryEnd(_LaneEvent, frozen=True, kw_only=True, tag="retry_end"):
    """The retried step settled."""

    run_id: str
    step: str
    attempt: int
    success: bool
    final_error: str | None = None


# Messages


class MessageStart(_LaneEvent, frozen=True, kw_only=True, tag="message_start"):
    """A message began; an assistant message may still be a partial."""

    message: AgentMessage
    run_id: str | None = None


class MessageUpdate(_LaneEvent, frozen=True, kw_only=True, tag="message_update"):
    """The assistant message grew by `event`; `message` is the partial so far."""

    run_id: str
    message: AssistantMessage
    event: AssistantMessageEvent


class MessageEnd(_LaneEvent, frozen=True, kw_only=True, tag="message_end"):
    """The message is final, but only `entry_added` proves that it is durable."""

    message: AgentMessage
    run_id: str | None = None
    entry_id: str | None = None


# Tools


class ToolStart(_LaneEvent, frozen=True, kw_only=True, tag="tool_start"):
    """A tool began to run."""

    run_id: str
    turn_id: str
    tool_call_id: str
    tool_name: str
    args: dict[str, JsonValue]


class ToolUpdateEvent(_LaneEvent, frozen=True, kw_only=True, tag="tool_update"):
    """A running tool reported progress."""

    run_id: str
    turn_id: str
    tool_call_id: str
    tool_name: str
    partial_result: AgentToolResult


class ToolEnd(_LaneEvent, frozen=True, kw_only=True, tag="tool_end"):
    """A tool finished; its outcome becomes durable next."""

    run_id: str
    turn_id: str
    tool_call_id: str
    tool_name: str
    result: AgentToolResult
    is_error: bool
    terminate: bool


# Tree, queues, session metadata


class EntryAdded(_LaneEvent, frozen=True, kw_only=True, tag="entry_added"):
    """An entry is committed and queryable."""

    entry: Entry


class WritePending(_LaneEvent, frozen=True, kw_only=True, tag="write_pending"):
    """A tree write waits for the run's next checkpoint."""

    run_id: str
    entry_id: str
    entry_type: EntryType


class QueueUpdate(_LaneEvent, frozen=True, kw_only=True, tag="queue_update"):
    """The queues changed; their complete contents."""

    steer: tuple[QueuedItem, ...]
    follow_up: tuple[QueuedItem, ...]
    next_run: tuple[QueuedItem, ...]


class ValueUpdate(_Event, frozen=True, kw_only=True, tag="value_update"):
    """The session's name or an entry's label changed (absent: removed)."""

    value: Literal["session_name", "entry_label"]
    name: str | None = None
    target_id: str | None = None
    label: str | None = None


# Configuration


class ConfigUpdate(_Event, frozen=True, kw_only=True, tag="config_update"):
    """A setting changed; `lane` for lane settings, none for harness-wide ones."""

    property: Literal[
        "model",
        "thinkingLevel",
        "activeTools",
        "tools",
        "resources",
        "streamOptions",
        "retryPolicy",
        "compactionSettings",
        "steeringMode",
        "followUpMode",
    ]
    value: JsonValue = None
    previous: JsonValue = None
    lane: str | None = None


# Structural work


class CompactionStart(_LaneEvent, frozen=True, kw_only=True, tag="compaction_start"):
    """A compaction began."""

    run_id: str
    reason: CompactionReason


class CompactionEnd(_LaneEvent, frozen=True, kw_only=True, tag="compaction_end"):
    """A compaction is over."""

    run_id: str
    reason: CompactionReason
    outcome: Outcome
    entry: CompactionEntry | None = None
    from_hook: bool | None = None
    error: OperationError | None = None


class NavigationStart(_LaneEvent, frozen=True, kw_only=True, tag="navigation_start"):
    """A navigation was accepted."""

    run_id: str
    target_id: str | None


class NavigationEnd(_LaneEvent, frozen=True, kw_only=True, tag="navigation_end"):
    """A navigation is over."""

    run_id: str
    old_leaf_id: str | None
    new_leaf_id: str | None
    outcome: Outcome
    summary_entry: BranchSummaryEntry | None = None
    error: OperationError | None = None


# Lanes and cost


class LaneCreated(_LaneEvent, frozen=True, kw_only=True, tag="lane_created"):
    """A lane was created at an entry (or at the root)."""

    at: str | None


class UsageEvent(_Event, frozen=True, kw_only=True, tag="usage"):
    """A ledger row was committed; reaches every watcher. `lane` is its origin."""

    lane: str
    row: UsageRow
    totals: Usage


HarnessEvent: TypeAlias = (
    RunStart
    | RunResume
    | RunSuspend
    | RunAbort
    | RunEnd
    | Fault
    | HandlerError
    | TurnStart
    | TurnEnd
    | RetryScheduled
    | RetryStart
    | RetryEnd
    | MessageStart
    | MessageUpdate
    | MessageEnd
    | ToolStart
    | ToolUpdateEvent
    | ToolEnd
    | EntryAdded
    | WritePending
    | QueueUpdate
    | ValueUpdate
    | ConfigUpdate
    | CompactionStart
    | CompactionEnd
    | NavigationStart
    | NavigationEnd
    | LaneCreated
    | UsageEvent
)

GLOBAL_EVENTS = (Fault, ValueUpdate, UsageEvent)


def reaches_lane(event: HarnessEvent, lane: str) -> bool:
    """Whether a watcher of `lane` receives this event: its own, and those without a lane (§5.5)."""
    if isinstance(event, GLOBAL_EVENTS):
        return True
    return event.lane is None or event.lane == lane


def event_type(event: HarnessEvent) -> str:
    """The event's name on the wire."""
    return str(event.__struct_config__.tag)
