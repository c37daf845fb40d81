"""Conversations put on a wire message by message, as an adapter without healing would send them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

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
from harness.models.pydantic_ai_client import Api


def raw_request(messages: Sequence[ProviderMessage], api: Api, model: str) -> dict[str, Any]:
    """The body of a request with exactly these messages."""
    match api:
        case "openai-chat":
            return {"model": model, "messages": [_chat(message) for message in messages]}
        case "openai-responses":
            return {"model": model, "input": [item for m in messages for item in _responses(m)]}
        case "anthropic":
            return {
                "model": model,
                "max_tokens": 16,
                "messages": [_anthropic(message) for message in messages],
            }
        case _:
            raise AssertionError(api)


def _data_url(part: ImageContent) -> str:
    return f"data:{part.mime_type};base64,{part.data}"


def _chat_content(content: str | tuple[InputContent, ...]) -> str | list[dict[str, Any]]:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text}
        if isinstance(part, TextContent)
        else {"type": "image_url", "image_url": {"url": _data_url(part)}}
        for part in content
    ]


def _text(message: AssistantMessage) -> str | None:
    texts = [part.text for part in message.content if isinstance(part, TextContent)]
    return "".join(texts) if texts else None


def _chat(message: ProviderMessage) -> dict[str, Any]:
    match message:
        case UserMessage():
            return {"role": "user", "content": _chat_content(message.content)}
        case ToolResultMessage():
            return {
                "role": "tool",
                "tool_call_id": message.tool_call_id,
                "content": _chat_content(message.content),
            }
        case AssistantMessage():
            said: dict[str, Any] = {"role": "assistant", "content": _text(message)}
            calls = [
                {
                    "id": part.id,
                    "type": "function",
                    "function": {"name": part.name, "arguments": json.dumps(part.arguments)},
                }
                for part in message.content
                if isinstance(part, ToolCall)
            ]
            return {**said, "tool_calls": calls} if calls else said


def _anthropic_part(part: TextContent | ImageContent | ThinkingContent | ToolCall) -> Any:
    match part:
        case TextContent():
            return {"type": "text", "text": part.text}
        case ImageContent():
            source = {"type": "base64", "media_type": part.mime_type, "data": part.data}
            return {"type": "image", "source": source}
        case ThinkingContent(redacted=True):
            return {"type": "redacted_thinking", "data": part.thinking_signature}
        case ThinkingContent():
            block = {"type": "thinking", "thinking": part.thinking}
            signature = part.thinking_signature
            return block if signature is None else {**block, "signature": signature}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments}


def _anthropic(message: ProviderMessage) -> dict[str, Any]:
    content = message.content
    if isinstance(content, str):
        return {"role": "user", "content": content}
    blocks = [_anthropic_part(part) for part in content]
    match message:
        case UserMessage():
            return {"role": "user", "content": blocks}
        case AssistantMessage():
            return {"role": "assistant", "content": blocks}
        case ToolResultMessage():
            outcome = {
                "type": "tool_result",
                "tool_use_id": message.tool_call_id,
                "content": blocks,
                "is_error": message.is_error,
            }
            return {"role": "user", "content": [outcome]}


def _responses(message: ProviderMessage) -> list[dict[str, Any]]:
    match message:
        case UserMessage(content=content):
            if isinstance(content, str):
                return [{"role": "user", "content": content}]
            parts = [
                {"type": "input_text", "text": part.text}
                if isinstance(part, TextContent)
                else {"type": "input_image", "image_url": _data_url(part)}
                for part in content
            ]
            return [{"role": "user", "content": parts}]
        case ToolResultMessage():
            text = "".join(part.text for part in message.content if isinstance(part, TextContent))
            call_id = message.tool_call_id
            return [{"type": "function_call_output", "call_id": call_id, "output": text}]
        case AssistantMessage():
            items: list[dict[str, Any]] = []
            for part in message.content:
                match part:
                    case TextContent():
                        items.append({"role": "assistant", "content": part.text})
                    case ThinkingContent():
                        signed = part.thinking_signature
                        items.append(
                            {"type": "reasoning", "summary": [], "encrypted_content": signed}
                        )
                    case ToolCall():
                        items.append(
                            {
                                "type": "function_call",
                                "call_id": part.id,
                                "name": part.name,
                                "arguments": json.dumps(part.arguments),
                            }
                        )
            return items
