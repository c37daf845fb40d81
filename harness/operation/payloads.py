"""What waits beside an operation's state until its turn comes: queued entries, and what a summary is made from (§1.3)."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from harness.codec import JsonValue
from harness.messages import AgentMessage
from harness.operation.durable import Durable
from harness.settings import CompactionSettings


class PendingMessage(Durable, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """A message that waits for its place in the tree."""

    payload: AgentMessage


class PendingCustom(Durable, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """A custom entry that waits for its place in the tree; no payload means no data."""

    custom_type: str
    payload: JsonValue | msgspec.UnsetType = msgspec.UNSET


PendingEntry: TypeAlias = PendingMessage | PendingCustom


class FileOperations(Durable, frozen=True, kw_only=True):
    """Paths that the summarized messages read, wrote and edited, sorted."""

    read: tuple[str, ...] = ()
    written: tuple[str, ...] = ()
    edited: tuple[str, ...] = ()


class CompactionPreparation(Durable, frozen=True, kw_only=True, tag_field="kind", tag="compaction"):
    """The input of a compaction, fixed when it was decided on."""

    messages_to_summarize: tuple[AgentMessage, ...]
    turn_prefix_messages: tuple[AgentMessage, ...]
    retained_tail: tuple[AgentMessage, ...]
    is_split_turn: bool
    tokens_before: int
    file_ops: FileOperations
    settings: CompactionSettings
    previous_summary: str | None = None


class BranchPreparation(Durable, frozen=True, kw_only=True, tag_field="kind", tag="branch_summary"):
    """The input of a branch summary, fixed at acceptance."""

    messages: tuple[AgentMessage, ...]
    file_ops: FileOperations
    total_tokens: int


StructuralPreparation: TypeAlias = CompactionPreparation | BranchPreparation
