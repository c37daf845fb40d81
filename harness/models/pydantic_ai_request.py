"""Writes a request in pydantic-ai's terms: messages, tools, settings (§5.7)."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, assert_never, cast

from harness.codec import JsonValue, valid_unicode
from harness.messages import (
    AssistantMessage,
    ImageContent,
    InputContent,
    ProviderMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.models.foreign_signature import unpack
from harness.models.protocol import Model, ModelContext, RequestOptions, ToolDefinition

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelRequestPart, ModelResponsePart, UserContent
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

_UNREADABLE_IMAGE = "(an image was here; its data is unreadable)"


def to_model_messages(
    messages: Sequence[ProviderMessage], model: Model, system: str
) -> list[ModelMessage]:
    """The conversation for pydantic-ai. `system` is the name its parts carry to be sent back.

    Without that name a thinking part would be replayed as text, so what this model made itself
    carries it, and what another made does not.
    """
    from pydantic_ai.messages import ModelRequest, ModelResponse

    converted: list[ModelMessage] = []
    pending: list[ModelRequestPart] = []
    for message in messages:
        match message:
            case UserMessage() | ToolResultMessage():
                pending.append(_request_part(message))
            case AssistantMessage():
                if pending:
                    converted.append(ModelRequest(parts=pending))
                    pending = []
                own = (message.provider, message.model) == (model.provider, model.model_id)
                converted.append(
                    ModelResponse(
                        parts=[
                            _response_part(part, system if own else None)
                            for part in message.content
                        ],
                        model_name=message.model,
                        provider_name=system if own else None,
                    )
                )
            case _:
                assert_never(message)
    if pending:
        converted.append(ModelRequest(parts=pending))
    return converted


def _request_part(message: UserMessage | ToolResultMessage) -> ModelRequestPart:
    from pydantic_ai.messages import ToolReturnPart, UserPromptPart

    if isinstance(message, UserMessage):
        content = message.content
        if isinstance(content, str):
            return UserPromptPart(content=valid_unicode(content))
        return UserPromptPart(content=[_user_content(part) for part in content])
    text = "\n".join(
        valid_unicode(part.text) for part in message.content if isinstance(part, TextContent)
    )
    images = [_user_content(part) for part in message.content if isinstance(part, ImageContent)]
    return ToolReturnPart(
        tool_name=message.tool_name,
        # A list of text and images is one of the shapes that a tool return may have.
        content=cast("Any", [text, *images]) if images else text,
        tool_call_id=message.tool_call_id,
        outcome="failed" if message.is_error else "success",
    )


def _user_content(part: InputContent) -> UserContent:
    from pydantic_ai.messages import BinaryContent

    if isinstance(part, TextContent):
        return valid_unicode(part.text)
    try:
        data = base64.b64decode(part.data)
    except (binascii.Error, ValueError):
        return _UNREADABLE_IMAGE
    return BinaryContent(data=data, media_type=part.mime_type)


def _response_part(
    part: TextContent | ThinkingContent | ToolCall, system: str | None
) -> ModelResponsePart:
    from pydantic_ai.messages import TextPart, ThinkingPart, ToolCallPart

    match part:
        case TextContent(text=text, text_signature=packed):
            source = unpack(packed if system else None)
            return TextPart(
                content=valid_unicode(text),
                id=source.id,
                provider_name=system,
                provider_details=_details(source.details),
            )
        case ThinkingContent(thinking=thinking, thinking_signature=packed):
            source = unpack(packed if system else None)
            return ThinkingPart(
                content=valid_unicode(thinking),
                id="redacted_thinking" if part.redacted else source.id,
                signature=source.signature,
                provider_name=system,
                provider_details=_details(source.details),
            )
        case ToolCall(id=call_id, name=name, arguments=arguments, thought_signature=packed):
            source = unpack(packed if system else None)
            return ToolCallPart(
                tool_name=name,
                args=cast("dict[str, Any]", _valid_json(arguments)),
                tool_call_id=call_id,
                id=source.id,
                provider_name=system,
                provider_details=_details(source.details),
            )


def _details(details: Mapping[str, JsonValue] | None) -> dict[str, Any] | None:
    return dict(details) if details else None


def _valid_json(value: JsonValue) -> JsonValue:
    """The value with lone surrogates replaced in every string: the wire is strict UTF-8."""
    if isinstance(value, str):
        return valid_unicode(value)
    if isinstance(value, Mapping):
        return {valid_unicode(key): _valid_json(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_valid_json(item) for item in value]
    return value


def to_parameters(context: ModelContext) -> ModelRequestParameters:
    """Tools and system prompt."""
    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.models import ModelRequestParameters

    system = valid_unicode(context.system_prompt)
    return ModelRequestParameters(
        function_tools=[_tool(tool) for tool in context.tools],
        instruction_parts=[InstructionPart(content=system)] if system.strip() else [],
    )


def _tool(tool: ToolDefinition) -> Any:
    from pydantic_ai.tools import ToolDefinition as Definition

    return Definition(
        name=tool.name,
        description=valid_unicode(tool.description),
        parameters_json_schema=cast("dict[str, Any]", _valid_json(tool.parameters)),
    )


def to_settings(model: Model, options: RequestOptions, headers: Mapping[str, str]) -> ModelSettings:
    """Options of one request. Retries inside the SDK are off: one attempt is one bill."""
    from pydantic_ai.settings import ModelSettings

    stream = options.stream
    # A server that traces goes on below the request's span; the caller's own headers win.
    traceparent = options.telemetry.traceparent
    trace = {} if traceparent is None else {"traceparent": traceparent}
    settings = ModelSettings(
        max_retries=0,
        extra_headers={**trace, **(stream.headers or {}), **headers},
        framing_announcement="never",
    )
    # The same bound that the harness compares a "length" stop with.
    settings["max_tokens"] = min(stream.max_tokens or model.max_tokens, model.max_tokens)
    if stream.temperature is not None:
        settings["temperature"] = stream.temperature
    if stream.timeout_ms is not None:
        settings["request_timeout"] = stream.timeout_ms / 1000
    if model.reasoning:
        level = options.thinking_level
        settings["thinking"] = False if level == "off" else level
    if model.api == "anthropic" and stream.cache_retention != "none":
        settings["cache"] = "1h" if stream.cache_retention == "long" else "5m"
    if model.api == "openai-responses":
        # The conversation is ours to keep: what the model needs again comes back encrypted.
        cast("dict[str, object]", settings)["openai_store"] = False
    return settings
