"""Decides what a summary covers: where to cut, what stays verbatim, which files were touched (§3.9)."""

from __future__ import annotations

from collections.abc import Sequence

from harness.codec import JsonValue
from harness.compaction.tokens import context_tokens, estimate_tokens
from harness.entries import CompactionEntry, Entry
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    CompactionSummaryMessage,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.operation.state import (
    BranchPreparation,
    CompactionPreparation,
    FileOperations,
)
from harness.settings import CompactionSettings

READ_TOOLS = frozenset({"read"})
WRITE_TOOLS = frozenset({"write"})
EDIT_TOOLS = frozenset({"edit"})


def prepare_compaction(
    entries: Sequence[Entry], messages: Sequence[AgentMessage], settings: CompactionSettings
) -> CompactionPreparation | None:
    """The input of a compaction of this context, or None when nothing can be summarized.

    `entries` start at the newest compaction, `messages` are their projection. The newest
    `keep_recent_tokens` stay verbatim; the cut never separates a tool call from its result.
    """
    if entries and isinstance(entries[-1], CompactionEntry):
        return None
    previous = entries[0] if entries and isinstance(entries[0], CompactionEntry) else None
    body = list(messages)
    if body and isinstance(body[0], CompactionSummaryMessage):
        body = body[1:]
    cut = _cut_index(body, settings.keep_recent_tokens)
    if cut <= 0:
        return None
    turn_start = _turn_start(body, cut)
    split = turn_start < cut
    summarized = body[:turn_start] if split else body[:cut]
    prefix = body[turn_start:cut] if split else []
    if not summarized and not prefix:
        return None
    return CompactionPreparation(
        messages_to_summarize=tuple(summarized),
        turn_prefix_messages=tuple(prefix),
        retained_tail=tuple(body[cut:]),
        is_split_turn=split,
        tokens_before=context_tokens(messages),
        previous_summary=None if previous is None else previous.summary,
        file_ops=file_operations(body[:cut], previous),
        settings=settings,
    )


def _cut_index(messages: Sequence[AgentMessage], keep_tokens: int) -> int:
    """Index of the first message that stays; 0 when everything fits."""
    kept = 0
    for index in range(len(messages) - 1, -1, -1):
        kept += estimate_tokens(messages[index])
        if kept >= keep_tokens:
            # Prefer keeping less; where results would lose their call, keep the whole exchange.
            for candidate in range(index, len(messages)):
                if candidate > 0 and _may_cut_before(messages, candidate):
                    return candidate
            for candidate in range(index - 1, 0, -1):
                if _may_cut_before(messages, candidate):
                    return candidate
            return 0
    return 0


def _may_cut_before(messages: Sequence[AgentMessage], index: int) -> bool:
    return not isinstance(messages[index], ToolResultMessage)


def _turn_start(messages: Sequence[AgentMessage], cut: int) -> int:
    """Where the turn that contains `cut` began: its user message, or `cut` itself."""
    if isinstance(messages[cut], UserMessage):
        return cut
    for index in range(cut - 1, -1, -1):
        if isinstance(messages[index], UserMessage):
            return index
    return 0


def prepare_branch_summary(
    messages: Sequence[AgentMessage], token_budget: int
) -> BranchPreparation:
    """The newest messages of a branch that fit the budget, oldest first."""
    kept: list[AgentMessage] = []
    total = 0
    for message in reversed(messages):
        tokens = estimate_tokens(message)
        if kept and total + tokens > token_budget:
            break
        kept.append(message)
        total += tokens
    kept.reverse()
    return BranchPreparation(
        messages=tuple(kept), file_ops=file_operations(messages, None), total_tokens=total
    )


def file_operations(
    messages: Sequence[AgentMessage], previous: CompactionEntry | None
) -> FileOperations:
    """Paths that tool calls read, wrote and edited, plus those an earlier compaction recorded."""
    read: set[str] = set()
    written: set[str] = set()
    edited: set[str] = set()
    if previous is not None and isinstance(previous.details, dict):
        read.update(_paths(previous.details.get("readFiles")))
        edited.update(_paths(previous.details.get("modifiedFiles")))
    for message in messages:
        if not isinstance(message, AssistantMessage):
            continue
        for part in message.content:
            if not isinstance(part, ToolCall):
                continue
            path = part.arguments.get("path")
            if not isinstance(path, str):
                continue
            if part.name in READ_TOOLS:
                read.add(path)
            elif part.name in WRITE_TOOLS:
                written.add(path)
            elif part.name in EDIT_TOOLS:
                edited.add(path)
    return FileOperations(
        read=tuple(sorted(read)), written=tuple(sorted(written)), edited=tuple(sorted(edited))
    )


def _paths(value: JsonValue) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
