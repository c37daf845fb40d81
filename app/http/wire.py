"""What this service answers with that is not already a durable type: listings, pages, receipts."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union, get_args

import msgspec

from harness.entries import Entry
from harness.errors import OperationKind
from harness.frames import AssistantMessageEvent
from harness.messages import AgentMessage, AssistantMessage, ImageContent, ThinkingLevel
from harness.operation.durable import OperationError
from harness.operation.events import HarnessEvent, MessageUpdate
from harness.operation.lane_state import LaneLastResult
from harness.operation.results import CurrentOperation, LaneInfo
from harness.settings import ModelIdentity
from harness.usage import Usage, UsageRow


class _Wire(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Common encoding rules of answers."""


class _Input(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Common decoding rules of requests that hold durable types."""


class SessionView(_Wire, frozen=True, kw_only=True):
    """A session. Times are Unix milliseconds; `usage` is the sum of its ledger."""

    id: str
    created_at: int
    updated_at: int
    # Any: the application's own JSON.
    metadata: dict[str, Any]
    message_count: int
    usage: Usage
    storage_version: int
    agent: str | None = None
    name: str | None = None
    cwd: str | None = None
    parent_session_id: str | None = None


class SessionPage(_Wire, frozen=True, kw_only=True):
    """Sessions, newest first. `next_cursor` is there while there may be more."""

    data: tuple[SessionView, ...]
    next_cursor: str | None = None


class EntryPage(_Wire, frozen=True, kw_only=True):
    """Entries in the order that was asked for."""

    data: tuple[Entry, ...]
    next_cursor: str | None = None


class LabelView(_Wire, frozen=True, kw_only=True):
    """The label of an entry."""

    entry_id: str
    label: str


class LabelPage(_Wire, frozen=True, kw_only=True):
    """The labels of a session, by entry id."""

    data: tuple[LabelView, ...]


class UsagePage(_Wire, frozen=True, kw_only=True):
    """Rows of the ledger by sequence."""

    data: tuple[UsageRow, ...]
    next_cursor: str | None = None


class LanePage(_Wire, frozen=True, kw_only=True):
    """The lanes of a session."""

    data: tuple[LaneInfo, ...]


class LaneView(_Wire, frozen=True, kw_only=True):
    """A lane: where it stands, what it is configured to use, what it does, what it did last.

    `thinking_level` and `active_tools` are there once the lane was used; until then it takes what
    the deployment gives new lanes.
    """

    lane: str
    leaf_id: str | None
    model: ModelIdentity
    current: CurrentOperation | None
    thinking_level: ThinkingLevel | None = None
    active_tools: tuple[str, ...] | None = None
    last_result: LaneLastResult | None = None


class OperationReceipt(_Wire, frozen=True, kw_only=True):
    """The permanent record of an operation. Times are Unix milliseconds.

    `outcome` and `finished_at` are there once it is done, `error` when it failed, `result` as the
    lane keeps it, and for a run that answered, `final_message`.
    """

    id: str
    session_id: str
    lane: str
    kind: OperationKind
    status: Literal["open", "done"]
    accepted_at: int
    finished_at: int | None = None
    outcome: str | None = None
    error: OperationError | None = None
    result: LaneLastResult | None = None
    final_message: AssistantMessage | None = None


class OperationPage(_Wire, frozen=True, kw_only=True):
    """Receipts, newest first."""

    data: tuple[OperationReceipt, ...]
    next_cursor: str | None = None


class QueueInput(_Input, frozen=True, kw_only=True):
    """A message to queue: text with images, or one complete message."""

    message: str | AgentMessage
    images: tuple[ImageContent, ...] = ()


class AppendMessageInput(_Input, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """Append a complete message."""

    message: AgentMessage


class AppendCustomInput(_Input, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """Append data of the application, under a type name of its own."""

    custom_type: str
    # Any: the application's own JSON.
    data: Any = None


AppendInput = AppendMessageInput | AppendCustomInput


class UsageInput(_Input, frozen=True, kw_only=True):
    """A correction of the ledger; a row like any other, marked as an adjustment."""

    usage: Usage
    entry_id: Annotated[str, msgspec.Meta(extra_json_schema={"format": "uuid"})] | None = None
    # Any: the application's own JSON.
    details: Any = None


class LaneChanges(_Input, frozen=True, kw_only=True):
    """What to change of a lane's configuration; what is left out stays."""

    model: ModelIdentity | msgspec.UnsetType = msgspec.UNSET
    thinking_level: ThinkingLevel | msgspec.UnsetType = msgspec.UNSET
    active_tools: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class MessageDelta(_Wire, frozen=True, kw_only=True, tag_field="type", tag="message_update"):
    """The assistant message grew by `event`. The message so far is not repeated: the snapshot's
    `streamingMessage`, or `message_start`, and the deltas since make it."""

    lane: str
    run_id: str
    event: AssistantMessageEvent
    recovery: bool = False


class StreamEnd(_Wire, frozen=True, kw_only=True):
    """Why a stream is over: `draining` and `slow_reader` mean connect again, `deleted` that the
    session is gone, `unauthorized` that the key no longer works."""

    reason: str


# Any: a union computed from the durable one; clients never see the growing message.
StreamedEvent: Any = Union[
    (*(event for event in get_args(HarnessEvent) if event is not MessageUpdate), MessageDelta)
]


class Health(_Wire, frozen=True, kw_only=True):
    """Whether this process lives, or is ready to serve."""

    status: Literal["ok", "ready"]


class ProblemDocument(_Wire, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457). Fields of the error follow, depending on `code`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
