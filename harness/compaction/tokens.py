"""Token counts: what the provider reported last, plus an estimate for what came after (§3.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from harness.codec import encode_str
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.usage import Usage

CHARS_PER_TOKEN = 4
IMAGE_CHARS = 4_800


def context_tokens_of(usage: Usage) -> int:
    """The context size that a provider's usage report implies."""
    return usage.total_tokens or (usage.input + usage.output + usage.cache_read + usage.cache_write)


def estimate_tokens(message: AgentMessage) -> int:
    """A conservative estimate of one message's tokens."""
    return -(-_characters(message) // CHARS_PER_TOKEN)


def _characters(message: AgentMessage) -> int:
    match message:
        case UserMessage(content=content) | CustomMessage(content=content):
            if isinstance(content, str):
                return len(content)
            return sum(_part(part) for part in content)
        case AssistantMessage(content=content):
            return sum(_part(part) for part in content)
        case ToolResultMessage(content=content):
            return sum(_part(part) for part in content)
        case CompactionSummaryMessage(summary=summary) | BranchSummaryMessage(summary=summary):
            return len(summary)
        case _:
            assert_never(message)


def _part(part: TextContent | ImageContent | ThinkingContent | ToolCall) -> int:
    match part:
        case TextContent(text=text):
            return len(text)
        case ThinkingContent(thinking=thinking):
            return len(thinking)
        case ImageContent():
            return IMAGE_CHARS
        case ToolCall(name=name, arguments=arguments):
            return len(name) + len(encode_str(arguments))
        case _:
            assert_never(part)


def context_tokens(messages: Sequence[AgentMessage]) -> int:
    """The size of a context: the newest report covers its prefix, the rest is estimated.

    A report from before the last compaction summary covers messages that are gone, so only
    reports after it count.
    """
    trailing = 0
    for message in reversed(messages):
        if isinstance(message, CompactionSummaryMessage):
            return trailing + sum(estimate_tokens(m) for m in messages[:1])
        if isinstance(message, AssistantMessage) and message.stop_reason not in (
            "error",
            "aborted",
        ):
            reported = context_tokens_of(message.usage)
            if reported > 0:
                return reported + trailing
        trailing += estimate_tokens(message)
    return trailing


def exceeds_threshold(tokens: int, context_window: int, reserve_tokens: int) -> bool:
    """Whether the context leaves less than the reserve."""
    return tokens > context_window - reserve_tokens
