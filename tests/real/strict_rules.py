"""What providers refuse in a request, as their own error texts say it: one check for each wire.

Collected from providers' documentation and from error reports. Each check raises `Refused` with a
text like the provider's, or returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

KNOWN_SIGNATURE = "s"
"""The one signature that the strict servers made themselves."""

BLIND = "blind"
"""A model of that name takes no images."""

_CHAT_ID_LENGTH = 40
_RESPONSES_ID_LENGTH = 64
_ANTHROPIC_ID = re.compile(r"[a-zA-Z0-9_-]+")

Body = Mapping[str, Any]


class Refused(Exception):
    """The request is refused; the text is the provider's reason."""


def check_chat(body: Body) -> None:
    """OpenAI's chat completions."""
    messages = body["messages"]
    if not messages:
        raise Refused("Invalid 'messages': empty array. Expected an array with minimum length 1")
    waiting: set[str] = set()
    answered: set[str] = set()
    for index, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role != "tool" and waiting:
            raise Refused(
                "An assistant message with 'tool_calls' must be followed by tool messages "
                f"responding to each 'tool_call_id'. Missing: {sorted(waiting)}"
            )
        if role == "tool":
            _chat_result(index, message, waiting, answered)
        elif role == "assistant":
            answered = set()
            waiting = _chat_calls(index, message)
            if content is None and not waiting:
                raise Refused(f"Invalid value for 'messages[{index}].content': got null")
        elif isinstance(content, list):
            if not content:
                raise Refused(f"Invalid 'messages[{index}].content': empty array")
            if body["model"] == BLIND and any(part["type"] == "image_url" for part in content):
                raise Refused("Invalid content type. image_url is only supported by certain models")
        elif content is None:
            raise Refused(f"Invalid value for 'messages[{index}].content': got null")
    if waiting:
        raise Refused("An assistant message with 'tool_calls' must be followed by tool messages")


def _chat_calls(index: int, message: Body) -> set[str]:
    calls = message.get("tool_calls")
    if calls is None:
        return set()
    if not calls:
        raise Refused(f"Invalid 'messages[{index}].tool_calls': empty array")
    ids = [call["id"] for call in calls]
    for call_id in ids:
        if not call_id:
            raise Refused(f"Invalid 'messages[{index}].tool_calls[0].id': empty string")
        if len(call_id) > _CHAT_ID_LENGTH:
            raise Refused(f"Invalid 'tool_calls[0].id': string too long, {len(call_id)}")
    for call in calls:
        json.loads(call["function"]["arguments"])
    return set(ids)


def _chat_result(index: int, message: Body, waiting: set[str], answered: set[str]) -> None:
    call_id, content = message["tool_call_id"], message.get("content")
    if call_id in answered:
        raise Refused(f"Duplicate value for 'tool_call_id' of '{call_id}' in message[{index}]")
    if call_id not in waiting:
        raise Refused(
            "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
        )
    if isinstance(content, list) and any(part["type"] == "image_url" for part in content):
        raise Refused(
            "Image URLs are only allowed for messages with role 'user', but this message with "
            "role 'tool' contains an image URL"
        )
    waiting.discard(call_id)
    answered.add(call_id)


def check_template(body: Body) -> None:
    """Servers that put a model's own chat template in front of it: turns must alternate."""
    check_chat(body)
    previous = ""
    for message in body["messages"]:
        role = message["role"]
        if role == "system":
            continue
        if not previous and role != "user":
            raise Refused("Conversation must start with a user prompt")
        if role == previous and role != "tool":
            raise Refused("Conversation roles must alternate user/assistant/user/assistant/...")
        previous = role
    if previous == "assistant":
        raise Refused("Expected last role User or Tool for serving but got assistant")


def check_responses(body: Body) -> None:
    """OpenAI's responses."""
    items = body["input"]
    if not items:
        raise Refused("Missing required parameter: 'input'")
    outputs = [item["call_id"] for item in items if item.get("type") == "function_call_output"]
    called: set[str] = set()
    for index, item in enumerate(items):
        match item.get("type", "message"):
            case "function_call":
                call_id = item["call_id"]
                if not call_id:
                    raise Refused(f"Invalid 'input[{index}].call_id': empty string")
                if len(call_id) > _RESPONSES_ID_LENGTH:
                    raise Refused(f"Invalid 'input[{index}].call_id': string too long")
                json.loads(item["arguments"])
                if call_id not in outputs:
                    raise Refused(f"No tool output found for function call {call_id}.")
                called.add(call_id)
            case "function_call_output":
                if item["call_id"] not in called:
                    raise Refused(
                        f"No tool call found for function call output with {item['call_id']}."
                    )
            case "reasoning":
                if item.get("encrypted_content") != KNOWN_SIGNATURE:
                    raise Refused("The encrypted content could not be verified.")
                if index + 1 == len(items):
                    raise Refused("Item of type 'reasoning' without its required following item.")
            case "message":
                if item["content"] is None or item["content"] == []:
                    raise Refused(f"Invalid value for 'input[{index}].content'")
            case other:
                raise Refused(f"Invalid value: '{other}'")


def check_anthropic(body: Body) -> None:
    """Anthropic's messages. Turns of one role in a row count as one."""
    if not body["messages"]:
        raise Refused("messages: at least one message is required")
    turns: list[tuple[str, list[Body]]] = []
    for index, message in enumerate(body["messages"]):
        blocks = _anthropic_blocks(index, message)
        if turns and turns[-1][0] == message["role"]:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message["role"], list(blocks)))
    if turns[0][0] != "user":
        raise Refused('messages: first message must use the "user" role')
    if turns[-1][0] != "user":
        raise Refused("The conversation must end with a user message (no assistant prefill).")
    seen: set[str] = set()
    expected: list[str] = []
    for role, blocks in turns:
        if role == "user":
            _anthropic_results(blocks, expected)
            expected = []
        else:
            expected = [block["id"] for block in blocks if block["type"] == "tool_use"]
            for call_id in expected:
                if not _ANTHROPIC_ID.fullmatch(call_id):
                    raise Refused("tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'")
                if call_id in seen:
                    raise Refused("messages: `tool_use` ids must be unique")
                seen.add(call_id)


def _anthropic_blocks(index: int, message: Body) -> Sequence[Body]:
    content = message["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    if not blocks or content == "":
        raise Refused(f"messages.{index}: all messages must have non-empty content")
    for block in blocks:
        match block["type"]:
            case "text":
                _anthropic_text(block)
            case "tool_result":
                inner = block.get("content")
                for part in inner if isinstance(inner, list) else ():
                    if part["type"] == "text":
                        _anthropic_text(part)
            case "thinking":
                if block.get("signature") != KNOWN_SIGNATURE:
                    raise Refused("Invalid `signature` in `thinking` block")
            case "redacted_thinking":
                if block.get("data") != KNOWN_SIGNATURE:
                    raise Refused("Invalid `data` in `redacted_thinking` block")
            case "tool_use" | "image":
                pass
            case other:
                raise Refused(f"Input tag '{other}' found using 'type' does not match")
    return blocks


def _anthropic_text(block: Body) -> None:
    if not block["text"].strip():
        raise Refused("messages: text content blocks must contain non-whitespace text")


def _anthropic_results(blocks: Sequence[Body], expected: Sequence[str]) -> None:
    results: list[str] = []
    other = False
    for block in blocks:
        if block["type"] != "tool_result":
            other = True
            continue
        if other and expected:
            raise Refused("tool_result blocks must come before any other content of the message")
        call_id = block["tool_use_id"]
        if call_id not in expected:
            raise Refused(f"unexpected `tool_use_id` found in `tool_result` blocks: {call_id}")
        if call_id in results:
            raise Refused(f"each tool_use must have a single result. Found multiple: {call_id}")
        results.append(call_id)
    if missing := set(expected) - set(results):
        raise Refused(
            f"`tool_use` ids were found without `tool_result` blocks immediately after: {missing}"
        )
