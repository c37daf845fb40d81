"""Conversations for tests of compaction, written briefly."""

from __future__ import annotations

from collections.abc import Sequence

from harness.codec import JsonValue
from harness.entries import CompactionEntry, Entry, MessageEntry
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    CompactionSummaryMessage,
    ImageContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.session.projection import in_context
from harness.settings import CompactionSettings
from harness.usage import ZERO_USAGE, Usage

WIDE = 1_000_000
"""A window that bounds nothing."""


def user(text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=1)


def said(*parts: str | ToolCall, reported: int = 0) -> AssistantMessage:
    """A response; `reported` tokens of context came with it."""
    usage = ZERO_USAGE
    if reported:
        usage = Usage(
            input=reported - 1, output=1, cache_read=0, cache_write=0, total_tokens=reported
        )
    calls = any(isinstance(part, ToolCall) for part in parts)
    return AssistantMessage(
        content=tuple(TextContent(text=part) if isinstance(part, str) else part for part in parts),
        api="a",
        provider="p",
        model="m",
        usage=usage,
        stop_reason="toolUse" if calls else "stop",
        timestamp=1,
    )


def use(call_id: str, name: str = "t", **arguments: JsonValue) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments=arguments)


def result(
    call_id: str, text: str = "ok", *images: ImageContent, error: bool = False
) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id,
        tool_name="t",
        content=(TextContent(text=text), *images),
        is_error=error,
        timestamp=1,
    )


def text_of(tokens: int) -> str:
    """A text that is estimated at this many tokens."""
    return "four" * tokens


def keeping(tokens: int, reserve: int = 1_000) -> CompactionSettings:
    return CompactionSettings(reserve_tokens=reserve, keep_recent_tokens=tokens)


def entries_of(messages: Sequence[AgentMessage]) -> list[Entry]:
    """The messages as a branch."""
    return [
        MessageEntry(
            seq=number,
            timestamp=1,
            id=str(number),
            parent_id=None if number == 0 else str(number - 1),
            message=message,
        )
        for number, message in enumerate(messages)
    ]


def compacted(
    summary: str,
    tail: Sequence[AgentMessage] = (),
    later: Sequence[AgentMessage] = (),
    details: JsonValue = None,
) -> list[Entry]:
    """A branch that starts at a compaction."""
    first = CompactionEntry(
        seq=0,
        timestamp=1,
        id="c",
        parent_id=None,
        summary=summary,
        retained_tail=tuple(tail),
        tokens_before=1,
        from_hook=False,
        details=details,
    )
    return [first, *entries_of(later)]


def projected(entries: Sequence[Entry]) -> list[AgentMessage]:
    """The context of these entries, without custom entries."""
    messages: list[AgentMessage] = []
    for entry in entries:
        if isinstance(entry, MessageEntry):
            messages.append(entry.message)
        elif isinstance(entry, CompactionEntry):
            messages.append(
                CompactionSummaryMessage(
                    summary=entry.summary, tokens_before=entry.tokens_before, timestamp=1
                )
            )
            messages += entry.retained_tail
    return [message for message in messages if in_context(message)]
