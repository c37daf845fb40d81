"""Messages of the legacy coding-agent format, read leniently into today's types (Appendix B)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast, get_args

import msgspec

from harness.codec import encode_str, foreign_json
from harness.messages import (
    AgentMessage,
    AssistantContent,
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ImageContent,
    InputContent,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.usage import ZERO_USAGE, Usage, UsageCost

# Any: foreign JSON, taken apart field by field.
Fields: TypeAlias = Mapping[str, Any]

_STOP_REASONS = frozenset(get_args(StopReason)) - {"pending"}


def legacy_message(fields: Fields, timestamp: int) -> AgentMessage | None:
    """The message, with `timestamp` (Unix ms) where it has none; None for a shell command that was
    kept out of the model's context, which has no message type any more."""
    at = _whole(fields.get("timestamp"), timestamp)
    match fields.get("role"):
        case "user":
            return UserMessage(content=legacy_content(fields.get("content")), timestamp=at)
        case "assistant":
            return _assistant(fields, at)
        case "toolResult":
            return _tool_result(fields, at)
        case "custom" | "hookMessage":
            return legacy_custom(fields, at)
        case "compactionSummary":
            return CompactionSummaryMessage(
                summary=_text(fields.get("summary")),
                tokens_before=_whole(fields.get("tokensBefore"), 0),
                timestamp=at,
            )
        case "branchSummary":
            return BranchSummaryMessage(
                summary=_text(fields.get("summary")), from_id=fields.get("fromId"), timestamp=at
            )
        case "bashExecution":
            return None if fields.get("excludeFromContext") else _shell(fields, at)
        case role:
            # Some extension's own message: what it said stays readable.
            return CustomMessage(
                custom_type=f"v3:{role}",
                content=_as_text(fields.get("content", fields)),
                timestamp=at,
                details=foreign_json(fields),
            )


def legacy_custom(fields: Fields, timestamp: int) -> CustomMessage:
    """An extension's message."""
    return CustomMessage(
        custom_type=_text(fields.get("customType")) or "unknown",
        content=legacy_content(fields.get("content")),
        timestamp=timestamp,
        display=fields.get("display") is not False,
        details=foreign_json(fields.get("details")),
    )


def legacy_usage(fields: object) -> Usage | None:
    """A usage record with zeros for what it lacks; None for none."""
    found = as_fields(fields)
    if found is None:
        return None
    prices = as_fields(found.get("cost")) or {}
    return Usage(
        input=_whole(found.get("input"), 0),
        output=_whole(found.get("output"), 0),
        cache_read=_whole(found.get("cacheRead"), 0),
        cache_write=_whole(found.get("cacheWrite"), 0),
        total_tokens=_whole(found.get("totalTokens"), 0),
        cost=UsageCost(
            input=_number(prices.get("input")),
            output=_number(prices.get("output")),
            cache_read=_number(prices.get("cacheRead")),
            cache_write=_number(prices.get("cacheWrite")),
            total=_number(prices.get("total")),
        ),
    )


def legacy_content(content: object) -> str | tuple[InputContent, ...]:
    """Text, or text and image parts."""
    if isinstance(content, str):
        return content
    parts = [_input(part) for part in _items(content)]
    return tuple(part for part in parts if part is not None)


def _assistant(fields: Fields, at: int) -> AssistantMessage:
    reason = fields.get("stopReason")
    parts = [_answer(part) for part in _items(fields.get("content"))]
    return AssistantMessage(
        content=tuple(part for part in parts if part is not None),
        api=_text(fields.get("api")),
        provider=_text(fields.get("provider")),
        model=_text(fields.get("model")),
        usage=legacy_usage(fields.get("usage")) or ZERO_USAGE,
        # A partial that was saved by mistake never settled.
        stop_reason=cast("StopReason", reason) if reason in _STOP_REASONS else "error",
        timestamp=at,
        error_message=_optional(fields.get("errorMessage")),
        response_id=_optional(fields.get("responseId")),
    )


def _tool_result(fields: Fields, at: int) -> ToolResultMessage:
    content = legacy_content(fields.get("content"))
    return ToolResultMessage(
        tool_call_id=_text(fields.get("toolCallId")),
        tool_name=_text(fields.get("toolName")),
        content=(TextContent(text=content),) if isinstance(content, str) else content,
        is_error=fields.get("isError") is True,
        timestamp=at,
        details=foreign_json(fields.get("details")),
        usage=legacy_usage(fields.get("usage")),
    )


def _shell(fields: Fields, at: int) -> CustomMessage:
    """A command the user ran; today that is an application's message."""
    outcome = "cancelled" if fields.get("cancelled") else f"exit code {fields.get('exitCode')}"
    output = _text(fields.get("output"))
    return CustomMessage(
        custom_type="bashExecution",
        content=f"$ {_text(fields.get('command'))}\n{output}\n({outcome})",
        timestamp=at,
        details=foreign_json({name: field for name, field in fields.items() if name != "output"}),
    )


def _input(part: object) -> InputContent | None:
    fields = as_fields(part)
    if fields is None:
        return None
    match fields.get("type"):
        case "text":
            return TextContent(
                text=_text(fields.get("text")),
                text_signature=_optional(fields.get("textSignature")),
            )
        case "image":
            return ImageContent(
                data=_text(fields.get("data")), mime_type=_text(fields.get("mimeType"))
            )
        case _:
            return TextContent(text=_as_text(fields))


def _answer(part: object) -> AssistantContent | None:
    fields = as_fields(part)
    if fields is None:
        return None
    match fields.get("type"):
        case "thinking":
            return ThinkingContent(
                thinking=_text(fields.get("thinking")),
                thinking_signature=_optional(fields.get("thinkingSignature")),
                redacted=fields.get("redacted") is True,
            )
        case "toolCall":
            arguments = fields.get("arguments")
            return ToolCall(
                id=_text(fields.get("id")),
                name=_text(fields.get("name")),
                arguments=cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {},
                thought_signature=_optional(fields.get("thoughtSignature")),
            )
        case _:
            found = _input(fields)
            return found if isinstance(found, TextContent) else TextContent(text=_as_text(fields))


def _items(content: object) -> Sequence[object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return cast("Sequence[object]", content) if isinstance(content, list) else ()


def as_fields(found: object) -> Fields | None:
    """The object's fields, or None when it is no JSON object."""
    return cast("Fields", found) if isinstance(found, dict) else None


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""


def _optional(found: object) -> str | None:
    return found if isinstance(found, str) else None


def _as_text(found: object) -> str:
    return found if isinstance(found, str) else encode_str(found)


def _whole(found: object, default: int) -> int:
    return int(found) if isinstance(found, int | float) and not isinstance(found, bool) else default


def _number(found: object) -> float:
    return float(found) if isinstance(found, int | float) else 0.0


def with_remapped_from(message: AgentMessage, ids: Mapping[str, str | None]) -> AgentMessage:
    """The message with the entry id it names, if any, under today's ids."""
    if isinstance(message, BranchSummaryMessage) and message.from_id is not None:
        return msgspec.structs.replace(message, from_id=ids.get(message.from_id))
    return message
