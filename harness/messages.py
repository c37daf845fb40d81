"""Conversation messages: what users, models and tools say, in their durable shape (§0.7)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from harness.codec import JsonValue, foreign_json
from harness.errors import InvalidArgument
from harness.usage import ZERO_USAGE, Usage


class _Durable(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Common encoding rules of message parts."""


class TextContent(_Durable, frozen=True, kw_only=True, tag_field="type", tag="text"):
    """Plain text. `text_signature` is provider metadata that must be sent back unchanged."""

    text: str
    text_signature: str | None = None


class ThinkingContent(_Durable, frozen=True, kw_only=True, tag_field="type", tag="thinking"):
    """A model's reasoning. `thinking_signature` is only valid for the provider that made it."""

    thinking: str
    thinking_signature: str | None = None
    redacted: bool = False


class ImageContent(_Durable, frozen=True, kw_only=True, tag_field="type", tag="image"):
    """An image: base64 `data` and its MIME type."""

    data: str
    mime_type: str


class ToolCall(_Durable, frozen=True, kw_only=True, tag_field="type", tag="toolCall"):
    """A tool call requested by the model; `id` is the provider's call id."""

    id: str
    name: str
    arguments: dict[str, JsonValue]
    thought_signature: str | None = None


InputContent: TypeAlias = TextContent | ImageContent
AssistantContent: TypeAlias = TextContent | ThinkingContent | ToolCall
StopReason: TypeAlias = Literal[
    "pending", "stop", "length", "toolUse", "error", "aborted", "deferred"
]
ErrorKind: TypeAlias = Literal["retryable", "terminal", "overflow"]
ThinkingLevel: TypeAlias = Literal["off", "minimal", "low", "medium", "high", "xhigh"]


class UserMessage(_Durable, frozen=True, kw_only=True, tag_field="role", tag="user"):
    """Input from the user. `timestamp` is Unix milliseconds."""

    content: str | tuple[InputContent, ...]
    timestamp: int


class DeferredHandle(_Durable, frozen=True, kw_only=True):
    """What redeems a response that a provider finishes in the background."""

    id: str
    provider: str
    model_id: str
    api: str
    data: JsonValue = None


class AssistantMessage(_Durable, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    """A model's response. `stop_reason` "pending" is only ever a live partial, never stored.

    `error_kind` and `retry_after_ms` are the adapter's classification of a failed request;
    without them the message text decides (§3.7).
    """

    content: tuple[AssistantContent, ...]
    api: str
    provider: str
    model: str
    usage: Usage
    stop_reason: StopReason
    timestamp: int
    error_message: str | None = None
    error_kind: ErrorKind | None = None
    retry_after_ms: int | None = None
    response_id: str | None = None
    deferred: DeferredHandle | None = None


class ToolResultMessage(_Durable, frozen=True, kw_only=True, tag_field="role", tag="toolResult"):
    """What a tool call produced, addressed to the call with `tool_call_id`."""

    tool_call_id: str
    tool_name: str
    content: tuple[InputContent, ...]
    is_error: bool
    timestamp: int
    details: JsonValue = None
    usage: Usage | None = None
    added_tool_names: tuple[str, ...] | None = None


class CustomMessage(_Durable, frozen=True, kw_only=True, tag_field="role", tag="custom"):
    """An application-defined message; it reaches the model as user text."""

    custom_type: str
    content: str | tuple[InputContent, ...]
    timestamp: int
    display: bool = True
    details: JsonValue = None


class CompactionSummaryMessage(
    _Durable, frozen=True, kw_only=True, tag_field="role", tag="compactionSummary"
):
    """The summary that stands for everything before a compaction, when context is built."""

    summary: str
    tokens_before: int
    timestamp: int


class BranchSummaryMessage(
    _Durable, frozen=True, kw_only=True, tag_field="role", tag="branchSummary"
):
    """The summary of a branch that was left by a navigation, when context is built."""

    summary: str
    from_id: str | None
    timestamp: int


AgentMessage: TypeAlias = (
    UserMessage
    | AssistantMessage
    | ToolResultMessage
    | CustomMessage
    | CompactionSummaryMessage
    | BranchSummaryMessage
)
ProviderMessage: TypeAlias = UserMessage | AssistantMessage | ToolResultMessage


class AgentToolResult(_Durable, frozen=True, kw_only=True):
    """A tool's result or bounded live update: content for the model, details for the application.

    `terminate` asks to end the run after this batch; `added_tool_names` makes tools active.
    """

    content: tuple[InputContent, ...]
    details: JsonValue = None
    usage: Usage | None = None
    added_tool_names: tuple[str, ...] | None = None
    terminate: bool = False


def text_result(
    text: str, *, details: JsonValue = None, terminate: bool = False
) -> AgentToolResult:
    """A tool result that is one piece of text."""
    return AgentToolResult(content=(TextContent(text=text),), details=details, terminate=terminate)


def safe_tool_result(result: AgentToolResult) -> AgentToolResult:
    """The result with content as a tuple and details storable; raises `InvalidArgument` if not."""
    for part in result.content:
        # Tools are checked here because their authors may not run a type checker.
        if not isinstance(  # pyright: ignore[reportUnnecessaryIsInstance]
            part, TextContent | ImageContent
        ):
            raise InvalidArgument(f"tool content cannot be a {type(part).__name__}")
    return msgspec.structs.replace(
        result,
        content=tuple(result.content),
        details=foreign_json(result.details),
        added_tool_names=(
            None if result.added_tool_names is None else tuple(result.added_tool_names)
        ),
    )


def tool_calls(message: AssistantMessage) -> tuple[tuple[int, ToolCall], ...]:
    """The message's tool calls with their index in the complete content (§3.2)."""
    return tuple(
        (index, part) for index, part in enumerate(message.content) if isinstance(part, ToolCall)
    )


def plain_text(content: str | Iterable[object]) -> str:
    """The text parts of some content, joined."""
    if isinstance(content, str):
        return content
    return "".join(part.text for part in content if isinstance(part, TextContent))


def empty_assistant(
    *,
    provider: str,
    model: str,
    api: str,
    timestamp: int,
    stop_reason: StopReason = "pending",
    error_message: str | None = None,
) -> AssistantMessage:
    """An assistant message without content or usage."""
    return AssistantMessage(
        content=(),
        api=api,
        provider=provider,
        model=model,
        usage=ZERO_USAGE,
        stop_reason=stop_reason,
        timestamp=timestamp,
        error_message=error_message,
    )
