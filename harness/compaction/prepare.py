"""Decides what a summary covers: where to cut, what stays verbatim, which files were touched (§3.9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from harness.codec import JsonValue
from harness.compaction.file_note import without_file_note
from harness.compaction.tokens import (
    MESSAGE_TOKENS,
    context_tokens,
    estimate_tokens,
    fitted,
    part_tokens,
)
from harness.compaction.transcript import shortened
from harness.entries import CompactionEntry, Entry
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    CompactionSummaryMessage,
    InputContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
)
from harness.operation.payloads import BranchPreparation, CompactionPreparation, FileOperations
from harness.session.projection import in_context
from harness.settings import CompactionSettings

MIN_RESULT_TOKENS = 64
_NOTE_TOKENS = 16
_IMAGE_LEFT_OUT = "(an image was here; it is left out to save space)"
READ_TOOLS = frozenset({"read"})
WRITE_TOOLS = frozenset({"write"})
EDIT_TOOLS = frozenset({"edit"})


def restated_messages(entries: Sequence[Entry]) -> int:
    """How many messages at the start of a context repeat what a compaction kept."""
    if not entries or not isinstance(entries[0], CompactionEntry):
        return 0
    return 1 + sum(in_context(message) for message in entries[0].retained_tail)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a model allows, in tokens. `overhead` is what its requests hold besides the messages.

    `refused` is the size of a request that the provider did not take, by its own count where it
    told one, else the window: estimates fall short by at least that much.
    """

    context_window: int
    overhead: int = 0
    refused: int | None = None


def prepare_compaction(
    entries: Sequence[Entry],
    messages: Sequence[AgentMessage],
    settings: CompactionSettings,
    limits: Limits | None = None,
) -> CompactionPreparation | None:
    """The input of a compaction of this context, or None when nothing can be summarized.

    `entries` start at the newest compaction, `messages` are their projection. The newest
    `keep_recent_tokens` stay verbatim; the cut never separates a tool call from its result.
    `limits` bounds the settings, and what stays: outputs of tools that alone would fill the window
    are shortened, and None is the answer where even then it cannot fit.
    """
    refused = limits is not None and limits.refused is not None
    previous = entries[0] if entries and isinstance(entries[0], CompactionEntry) else None
    if previous is not None and len(entries) == 1 and not refused:
        return None
    body = list(messages)
    if body and isinstance(body[0], CompactionSummaryMessage):
        body = body[1:]
    sizes = [estimate_tokens(message) for message in body]
    if limits is not None:
        settings = fitted(settings, limits.context_window)
    keep, room = _measures(settings, sum(sizes), limits)
    cut = _cut_index(body, sizes, keep, room)
    tail = tuple(body[cut:])
    if limits is not None and room is not None:
        tail = fit_tail(tail, room)
        # Twice: the estimate may err, and a summary for nothing would cost the conversation.
        if sum(estimate_tokens(message) for message in tail) > 2 * limits.context_window:
            return None
    if cut == 0 and (not refused or previous is None or tail == tuple(body)):
        return None
    turn_start = _turn_start(body, cut)
    # A turn that began before the last compaction, or with it, is covered by updating its summary.
    split = turn_start is not None and turn_start < cut and (previous is None or turn_start > 0)
    history_end = turn_start if split and turn_start is not None else cut
    return CompactionPreparation(
        messages_to_summarize=tuple(body[:history_end]),
        turn_prefix_messages=tuple(body[history_end:cut]),
        retained_tail=tail,
        is_split_turn=split,
        tokens_before=context_tokens(messages, restated=restated_messages(entries)),
        previous_summary=None if previous is None else without_file_note(previous.summary),
        file_ops=file_operations(body[:cut], previous),
        settings=settings,
    )


def _measures(
    settings: CompactionSettings, estimated: int, limits: Limits | None
) -> tuple[int, int | None]:
    """How much to keep at least, and how much may stay at most, in estimated tokens."""
    keep = settings.keep_recent_tokens
    if limits is None:
        return keep, None
    room = limits.context_window - settings.reserve_tokens - limits.overhead
    room = max(0, room) * 3 // 4
    if limits.refused is None:
        return keep, room
    counted = max(limits.refused, limits.context_window)
    known = min(estimated + limits.overhead, counted)
    return min(keep * known // counted, estimated // 2), room * known // counted


def _cut_index(
    messages: Sequence[AgentMessage], sizes: Sequence[int], keep_tokens: int, room: int | None
) -> int:
    """Index of the first message that stays; 0 when everything fits."""
    joined = _joined(messages)
    kept = 0
    for index in range(len(messages) - 1, -1, -1):
        kept += sizes[index]
        if kept >= keep_tokens:
            # Prefer keeping less; where results would lose their call, keep the whole exchange.
            later = [at for at in range(max(index, 1), len(messages)) if not joined[at]]
            if later:
                return _roomy(messages, sizes, later, room)
            return next((at for at in range(index - 1, 0, -1) if not joined[at]), 0)
    return 0


def _roomy(
    messages: Sequence[AgentMessage], sizes: Sequence[int], cuts: Sequence[int], room: int | None
) -> int:
    """The first of the cuts after which the rest can be made to fit, or the last one."""
    if room is not None:
        needed = 0
        fitting = cuts[-1]
        remaining = list(cuts)
        for index in range(len(messages) - 1, cuts[0] - 1, -1):
            result = isinstance(messages[index], ToolResultMessage)
            needed += min(sizes[index], MIN_RESULT_TOKENS) if result else sizes[index]
            if needed > room:
                return fitting
            if remaining and remaining[-1] == index:
                fitting = remaining.pop()
    return cuts[0]


def _joined(messages: Sequence[AgentMessage]) -> list[bool]:
    """For each message, whether a cut before it would part a result from its call."""
    opening = [0] * (len(messages) + 1)
    called: dict[str, int] = {}
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            # Providers repeat ids in later turns; a result answers the newest call of its id.
            for part in message.content:
                if isinstance(part, ToolCall):
                    called[part.id] = index
        elif isinstance(message, ToolResultMessage) and message.tool_call_id in called:
            opening[called[message.tool_call_id] + 1] += 1
            opening[index + 1] -= 1
    open_pairs = 0
    joined: list[bool] = []
    for index, message in enumerate(messages):
        open_pairs += opening[index]
        joined.append(open_pairs > 0 or isinstance(message, ToolResultMessage))
    return joined


def _turn_start(messages: Sequence[AgentMessage], cut: int) -> int | None:
    """Where the turn that `cut` falls into began: the newest input at or before it."""
    for index in range(cut, -1, -1):
        if not isinstance(messages[index], AssistantMessage | ToolResultMessage):
            return index
    return None


def fit_tail(tail: tuple[AgentMessage, ...], room: int) -> tuple[AgentMessage, ...]:
    """The tail with outputs of tools shortened so that it takes `room` tokens, as far as that helps.

    The tree keeps the whole outputs; what the model sees from here on says what is missing.
    """
    sizes = [estimate_tokens(message) for message in tail]
    if sum(sizes) <= room:
        return tail
    results = [
        size
        for size, message in zip(sizes, tail, strict=True)
        if isinstance(message, ToolResultMessage)
    ]
    if not results:
        return tail
    share = max(MIN_RESULT_TOKENS, (room - sum(sizes) + sum(results)) // len(results))
    return tuple(
        _shortened_result(message, share)
        if isinstance(message, ToolResultMessage) and size > share
        else message
        for size, message in zip(sizes, tail, strict=True)
    )


def _shortened_result(message: ToolResultMessage, tokens: int) -> ToolResultMessage:
    room = tokens - MESSAGE_TOKENS
    content: list[InputContent] = []
    for part in message.content:
        size = part_tokens(part)
        if size <= room:
            content.append(part)
            room -= size
        elif isinstance(part, TextContent):
            content.append(TextContent(text=shortened(part.text, max(room, _NOTE_TOKENS))))
            room = 0
        else:
            content.append(TextContent(text=_IMAGE_LEFT_OUT))
    return msgspec.structs.replace(message, content=tuple(content))


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
