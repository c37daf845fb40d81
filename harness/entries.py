"""Conversation entries: immutable nodes of the session tree, placement and payload together (§2.1)."""

from __future__ import annotations

from typing import Literal, TypeAlias, assert_never

import msgspec

from harness.codec import JsonValue
from harness.messages import AgentMessage
from harness.usage import Usage

EntryType: TypeAlias = Literal["message", "compaction", "branch_summary", "custom"]


class _Payload(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    """Common encoding rules of entry payloads."""


class MessagePayload(_Payload, frozen=True, kw_only=True, tag="message"):
    """A message; `terminate` marks a tool result that asks the run to end."""

    message: AgentMessage
    terminate: bool = False


class CompactionPayload(_Payload, frozen=True, kw_only=True, tag="compaction"):
    """A checkpoint of the context: summary plus the tail that stays verbatim."""

    summary: str
    retained_tail: tuple[AgentMessage, ...]
    tokens_before: int
    from_hook: bool
    details: JsonValue = None
    usage: Usage | None = None


class BranchSummaryPayload(_Payload, frozen=True, kw_only=True, tag="branch_summary"):
    """A summary of the branch that a navigation left at `from_id` (None: the root)."""

    from_id: str | None
    summary: str
    from_hook: bool
    details: JsonValue = None
    usage: Usage | None = None


class CustomPayload(_Payload, frozen=True, kw_only=True, tag="custom"):
    """Application data in the tree; it enters context only through a projector."""

    custom_type: str
    data: JsonValue | msgspec.UnsetType = msgspec.UNSET


EntryPayload: TypeAlias = MessagePayload | CompactionPayload | BranchSummaryPayload | CustomPayload


class NewEntry(msgspec.Struct, frozen=True):
    """An entry to insert; storage stamps `seq` and `timestamp` at commit."""

    id: str
    parent_id: str | None
    payload: EntryPayload


class _Placed(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    """Placement fields that every stored entry carries."""

    seq: int
    timestamp: int
    id: str
    parent_id: str | None


class MessageEntry(_Placed, frozen=True, kw_only=True, tag="message"):
    """A stored message."""

    message: AgentMessage
    terminate: bool = False


class CompactionEntry(_Placed, frozen=True, kw_only=True, tag="compaction"):
    """A stored compaction: context never reads past it."""

    summary: str
    retained_tail: tuple[AgentMessage, ...]
    tokens_before: int
    from_hook: bool
    details: JsonValue = None
    usage: Usage | None = None


class BranchSummaryEntry(_Placed, frozen=True, kw_only=True, tag="branch_summary"):
    """A stored branch summary."""

    from_id: str | None
    summary: str
    from_hook: bool
    details: JsonValue = None
    usage: Usage | None = None


class CustomEntry(_Placed, frozen=True, kw_only=True, tag="custom"):
    """A stored application entry."""

    custom_type: str
    data: JsonValue | msgspec.UnsetType = msgspec.UNSET


Entry: TypeAlias = MessageEntry | CompactionEntry | BranchSummaryEntry | CustomEntry


class EntryStructure(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An entry's placement without its payload."""

    id: str
    parent_id: str | None
    seq: int
    timestamp: int
    type: EntryType
    custom_type: str | None = None


def payload_type(payload: EntryPayload) -> EntryType:
    """The entry type that this payload makes."""
    match payload:
        case MessagePayload():
            return "message"
        case CompactionPayload():
            return "compaction"
        case BranchSummaryPayload():
            return "branch_summary"
        case CustomPayload():
            return "custom"
        case _:
            assert_never(payload)


def entry_type(entry: Entry) -> EntryType:
    """The type of a stored entry."""
    match entry:
        case MessageEntry():
            return "message"
        case CompactionEntry():
            return "compaction"
        case BranchSummaryEntry():
            return "branch_summary"
        case CustomEntry():
            return "custom"
        case _:
            assert_never(entry)


def custom_type_of(entry: Entry | EntryPayload) -> str | None:
    """The application's type name of a custom entry, None for all others."""
    return entry.custom_type if isinstance(entry, CustomEntry | CustomPayload) else None


def place(
    payload: EntryPayload, *, id: str, parent_id: str | None, seq: int, timestamp: int
) -> Entry:
    """The stored entry that a payload becomes at this place."""
    match payload:
        case MessagePayload(message=message, terminate=terminate):
            return MessageEntry(
                seq=seq,
                timestamp=timestamp,
                id=id,
                parent_id=parent_id,
                message=message,
                terminate=terminate,
            )
        case CompactionPayload():
            return CompactionEntry(
                seq=seq,
                timestamp=timestamp,
                id=id,
                parent_id=parent_id,
                summary=payload.summary,
                retained_tail=payload.retained_tail,
                tokens_before=payload.tokens_before,
                from_hook=payload.from_hook,
                details=payload.details,
                usage=payload.usage,
            )
        case BranchSummaryPayload():
            return BranchSummaryEntry(
                seq=seq,
                timestamp=timestamp,
                id=id,
                parent_id=parent_id,
                from_id=payload.from_id,
                summary=payload.summary,
                from_hook=payload.from_hook,
                details=payload.details,
                usage=payload.usage,
            )
        case CustomPayload():
            return CustomEntry(
                seq=seq,
                timestamp=timestamp,
                id=id,
                parent_id=parent_id,
                custom_type=payload.custom_type,
                data=payload.data,
            )
        case _:
            assert_never(payload)


def payload_of(entry: Entry) -> EntryPayload:
    """The payload of a stored entry, without its placement."""
    match entry:
        case MessageEntry():
            return MessagePayload(message=entry.message, terminate=entry.terminate)
        case CompactionEntry():
            return CompactionPayload(
                summary=entry.summary,
                retained_tail=entry.retained_tail,
                tokens_before=entry.tokens_before,
                from_hook=entry.from_hook,
                details=entry.details,
                usage=entry.usage,
            )
        case BranchSummaryEntry():
            return BranchSummaryPayload(
                from_id=entry.from_id,
                summary=entry.summary,
                from_hook=entry.from_hook,
                details=entry.details,
                usage=entry.usage,
            )
        case CustomEntry():
            return CustomPayload(custom_type=entry.custom_type, data=entry.data)
        case _:
            assert_never(entry)


def structure_of(entry: Entry) -> EntryStructure:
    """The placement of a stored entry."""
    return EntryStructure(
        id=entry.id,
        parent_id=entry.parent_id,
        seq=entry.seq,
        timestamp=entry.timestamp,
        type=entry_type(entry),
        custom_type=custom_type_of(entry),
    )
