"""Commands: everything that writes to a session or must see its owner, as values that can travel (design §6)."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from harness.codec import JsonValue, decode, encode
from harness.errors import (
    Closed,
    InvalidLane,
    InvalidMessage,
    InvalidNavigation,
    LaneBusy,
    LaneExists,
    NoActiveOperation,
    NoActiveRun,
    NothingToCompact,
    NothingToResume,
    OperationMismatch,
    StorageCorrupt,
    TaggedError,
    UnknownSkill,
    UnknownTarget,
    UnknownTemplate,
)
from harness.messages import AgentMessage, ImageContent, ThinkingLevel
from harness.result import Err, Ok
from harness.runtime.requests import OperationRequest
from harness.settings import ModelIdentity
from harness.usage import Usage


class UnknownLane(TaggedError, frozen=True, kw_only=True, tag=True):
    """The session has no lane of that name; create it first."""

    lane: str


class UnknownModel(TaggedError, frozen=True, kw_only=True, tag=True):
    """No model of that name is configured here."""

    provider: str
    model_id: str


class InvalidRequest(TaggedError, frozen=True, kw_only=True, tag=True):
    """A value of the command is outside its documented range; the message says which."""


class OperationIdTaken(TaggedError, frozen=True, kw_only=True, tag=True):
    """The operation id belongs to another lane's or session's operation; use a new one."""

    operation_id: str


class RequestInProgress(TaggedError, frozen=True, kw_only=True, tag=True):
    """A later request with the same idempotency key took this one's place; ask again for its answer."""


class _Command(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    tag_field="command",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Common encoding rules of commands."""


class RequestKey(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """The idempotency key that a command was asked for with, and the number of the attempt."""

    key: str
    attempt: int


class _Keyed(_Command, frozen=True, kw_only=True):
    """A command that makes something: once under its `request`, if it has one."""

    request: RequestKey | None = None


class Accept(_Command, frozen=True, kw_only=True, tag="accept"):
    """Accept an operation durably (`OperationAdmission`). A repeated operation id is answered with
    the admission it had."""

    lane: str
    request: OperationRequest


class Steer(_Keyed, frozen=True, kw_only=True, tag="steer"):
    """Queue input for the open run's next turn (`QueuedEntry`)."""

    lane: str
    message: str | AgentMessage
    images: tuple[ImageContent, ...] = ()


class FollowUp(_Keyed, frozen=True, kw_only=True, tag="follow_up"):
    """Queue input for when the open run would otherwise end (`QueuedEntry`)."""

    lane: str
    message: str | AgentMessage
    images: tuple[ImageContent, ...] = ()


class NextRun(_Keyed, frozen=True, kw_only=True, tag="next_run"):
    """Queue input that the next run starts with (`QueuedEntry`)."""

    lane: str
    message: str | AgentMessage
    images: tuple[ImageContent, ...] = ()


class CancelQueued(_Command, frozen=True, kw_only=True, tag="cancel_queued"):
    """Remove a queued item (`harness.operation.results.CancelQueued`)."""

    lane: str
    entry_id: str


class RequestAbort(_Command, frozen=True, kw_only=True, tag="request_abort"):
    """Cancel the expected operation durably (`AbortRequest`)."""

    lane: str
    operation_id: str


class Abort(_Command, frozen=True, kw_only=True, tag="abort"):
    """Cancel whatever operation is open (`AbortRequest`)."""

    lane: str


class Resume(_Command, frozen=True, kw_only=True, tag="resume"):
    """Have the open operation looked at now, a background response polled (`LaneExecution`)."""

    lane: str


class CreateLane(_Keyed, frozen=True, kw_only=True, tag="create_lane"):
    """Create a lane at an entry, or at the root (`LaneExecution`)."""

    name: str
    at: str | None = None


class ConfigureLane(_Command, frozen=True, kw_only=True, tag="configure_lane"):
    """Change what a lane's next step uses; None keeps a setting (`LaneConfiguration`)."""

    lane: str
    model: ModelIdentity | None = None
    thinking_level: ThinkingLevel | None = None
    active_tools: tuple[str, ...] | None = None


class AppendMessage(_Keyed, frozen=True, kw_only=True, tag="append_message"):
    """Append a settled message; during a run it waits for the next checkpoint (`QueuedEntry`)."""

    lane: str
    message: AgentMessage


class AppendCustom(_Keyed, frozen=True, kw_only=True, tag="append_custom"):
    """Append application data; during a run it waits for the next checkpoint (`QueuedEntry`)."""

    lane: str
    custom_type: str
    data: JsonValue = None


class SetName(_Command, frozen=True, kw_only=True, tag="set_name"):
    """Set or remove the session's name (null)."""

    name: str | None


class SetLabel(_Command, frozen=True, kw_only=True, tag="set_label"):
    """Set or remove an entry's label (null)."""

    target_id: str
    label: str | None


class RecordUsage(_Keyed, frozen=True, kw_only=True, tag="record_usage"):
    """Append a reconciliation row to the ledger (`RecordedUsage`)."""

    lane: str
    usage: Usage
    entry_id: str | None = None
    details: JsonValue = None


class Inspect(_Command, frozen=True, kw_only=True, tag="inspect"):
    """A coherent observation of one lane (`LaneExecution`)."""

    lane: str


class InspectLanes(_Command, frozen=True, kw_only=True, tag="inspect_lanes"):
    """Every lane of the session (array of `LaneInfo`)."""


class Drive(_Command, frozen=True, kw_only=True, tag="drive"):
    """Hand an operation over to the owner, who looks at what is due (null)."""

    lane: str
    operation_id: str


Command: TypeAlias = (
    Accept
    | Steer
    | FollowUp
    | NextRun
    | CancelQueued
    | RequestAbort
    | Abort
    | Resume
    | CreateLane
    | ConfigureLane
    | AppendMessage
    | AppendCustom
    | SetName
    | SetLabel
    | RecordUsage
    | Inspect
    | InspectLanes
    | Drive
)

# Commands that write nothing when they are repeated after an answer that got lost. The others do not
# under a key.
_REPEATABLE = (
    Accept,
    CancelQueued,
    RequestAbort,
    Abort,
    Resume,
    ConfigureLane,
    SetName,
    SetLabel,
    Inspect,
    InspectLanes,
    Drive,
)


def repeatable(command: Command) -> bool:
    """Whether a command whose outcome is unknown may be tried again."""
    return isinstance(command, _REPEATABLE) or command.request is not None


# Commands after which an operation may be due that was not before.
WAKING = (Accept, RequestAbort, Abort, Resume)

# Commands that committed data can answer when nobody owns the session.
READING = (Inspect, InspectLanes)


class RecordedUsage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The id of a ledger row."""

    id: str


CommandError: TypeAlias = (
    LaneBusy
    | OperationMismatch
    | NoActiveRun
    | NoActiveOperation
    | NothingToResume
    | NothingToCompact
    | InvalidMessage
    | InvalidNavigation
    | UnknownSkill
    | UnknownTemplate
    | UnknownTarget
    | LaneExists
    | InvalidLane
    | Closed
    | UnknownLane
    | UnknownModel
    | InvalidRequest
    | OperationIdTaken
    | RequestInProgress
)

# The JSON of the result struct that the command's docstring names, or an expected rejection.
Reply: TypeAlias = Ok[bytes] | Err[TaggedError]

# Any: pyright cannot name a union as type[T]; the decoder takes it.
_COMMAND: Any = Command
_ERROR: Any = CommandError


# A reply travels as one of these bytes and then the JSON, which is not parsed on its way.
_OK, _ERR = b"+", b"-"


def encode_command(command: Command) -> bytes:
    """The command as JSON."""
    return encode(command)


def decode_command(data: bytes) -> Command:
    """Raises `StorageCorrupt` when the bytes are no command."""
    return decode(data, _COMMAND)


def encode_reply(reply: Reply) -> bytes:
    """The reply as bytes for another host."""
    if isinstance(reply, Ok):
        return _OK + reply.value
    return _ERR + encode(reply.error)


def decode_reply(data: bytes) -> Reply:
    """Raises `StorageCorrupt` when the bytes are no reply."""
    sign, rest = data[:1], data[1:]
    if sign == _OK:
        return Ok(rest)
    if sign == _ERR:
        error: TaggedError = decode(rest, _ERROR)
        return Err(error)
    raise StorageCorrupt("another host's reply is unreadable")
