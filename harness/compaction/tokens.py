"""Token counts: what the provider reported last, plus an estimate for what came after (§3.9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

import msgspec

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
from harness.settings import CompactionSettings
from harness.usage import Usage

BYTES_PER_TOKEN = 4
# The marks that a chat template puts around every message.
MESSAGE_TOKENS = 4
IMAGE_TOKENS = 1_200


def context_tokens_of(usage: Usage) -> int:
    """The context size that a provider's usage report implies; 0 when it says nothing of the input."""
    asked = usage.input + usage.cache_read + usage.cache_write
    if asked == 0 and usage.total_tokens <= usage.output:
        return 0
    return usage.total_tokens or (asked + usage.output)


def text_tokens(text: str) -> int:
    """An estimate of a text's tokens. By bytes, since scripts beyond ASCII take more per character."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -(-size // BYTES_PER_TOKEN)


def estimate_tokens(message: AgentMessage) -> int:
    """A conservative estimate of one message's tokens."""
    return MESSAGE_TOKENS + _content_tokens(message)


def _content_tokens(message: AgentMessage) -> int:
    match message:
        case UserMessage(content=content) | CustomMessage(content=content):
            if isinstance(content, str):
                return text_tokens(content)
            return sum(part_tokens(part) for part in content)
        case AssistantMessage(content=content):
            return sum(part_tokens(part) for part in content)
        case ToolResultMessage(content=content):
            return sum(part_tokens(part) for part in content)
        case CompactionSummaryMessage(summary=summary) | BranchSummaryMessage(summary=summary):
            return text_tokens(summary)
        case _:
            assert_never(message)


def part_tokens(part: TextContent | ImageContent | ThinkingContent | ToolCall) -> int:
    """An estimate of one content part's tokens."""
    match part:
        case TextContent(text=text):
            return text_tokens(text)
        case ThinkingContent(thinking=thinking):
            return text_tokens(thinking)
        case ImageContent():
            return IMAGE_TOKENS
        case ToolCall(name=name, arguments=arguments):
            return text_tokens(name) + text_tokens(encode_str(arguments))
        case _:
            assert_never(part)


def _no_overhead() -> int:
    return 0


def context_tokens(
    messages: Sequence[AgentMessage],
    *,
    restated: int = 0,
    overhead: Callable[[], int] = _no_overhead,
) -> int:
    """The size of a context: the newest report covers its prefix, the rest is estimated.

    The first `restated` messages are a compaction's summary and retained tail: what a provider
    reported with one of those covers messages that are gone. Where no report counts, `overhead`
    tells what a request holds besides the messages (system prompt, tools).
    """
    trailing = 0
    for index in range(len(messages) - 1, restated - 1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage) and message.stop_reason not in (
            "error",
            "aborted",
        ):
            reported = context_tokens_of(message.usage)
            if reported > 0:
                return reported + trailing
        trailing += estimate_tokens(message)
    return overhead() + trailing + sum(estimate_tokens(m) for m in messages[:restated])


def exceeds_threshold(tokens: int, context_window: int, reserve_tokens: int) -> bool:
    """Whether the context leaves less than the reserve."""
    return tokens > context_window - reserve_tokens


def fitted(settings: CompactionSettings, context_window: int) -> CompactionSettings:
    """The settings within what a window allows: they are given once, for models of any size.

    Unbounded, a reserve beyond the window would always be exceeded, and a kept part beyond it
    would leave nothing to summarize.
    """
    reserve = min(settings.reserve_tokens, context_window // 2)
    keep = min(settings.keep_recent_tokens, (context_window - reserve) // 2)
    if (reserve, keep) == (settings.reserve_tokens, settings.keep_recent_tokens):
        return settings
    return msgspec.structs.replace(settings, reserve_tokens=reserve, keep_recent_tokens=keep)
