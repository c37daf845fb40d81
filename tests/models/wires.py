"""Answers in the three wire formats, as the providers' own servers write them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.models.fault_server import Reply

DONE = "data: [DONE]\n\n"


def chat_chunk(
    delta: dict[str, Any] | None = None, finish: str | None = None, usage: Any = None
) -> dict[str, Any]:
    """One chunk of a chat completion."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "small",
        "choices": choices,
        "usage": usage,
    }


def chat_usage(prompt: int, completion: int, cached: int = 0) -> dict[str, Any]:
    """The usage object of a chat completion."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_text(*pieces: str, finish: str = "stop", usage: Any = None) -> Reply:
    """A streamed chat answer."""
    return Reply(
        events=[
            chat_chunk({"role": "assistant", "content": ""}),
            *(chat_chunk({"content": piece}) for piece in pieces),
            chat_chunk({}, finish),
            chat_chunk(usage=usage if usage is not None else chat_usage(10, len(pieces))),
            DONE,
        ]
    )


def chat_call(index: int, call_id: str | None, name: str | None, arguments: str) -> dict[str, Any]:
    """A chunk with a piece of a tool call."""
    function: dict[str, Any] = {"arguments": arguments}
    if name is not None:
        function["name"] = name
    call: dict[str, Any] = {"index": index, "type": "function", "function": function}
    if call_id is not None:
        call["id"] = call_id
    return chat_chunk({"tool_calls": [call]})


def anthropic(
    *events: dict[str, Any],
    stop: str | None = "end_turn",
    input_tokens: int = 10,
    output_tokens: int = 5,
    cache_read: int = 0,
    cache_write: int = 0,
) -> list[dict[str, Any]]:
    """A message stream around some content events; `stop` None leaves the end out."""
    head = {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {
                "input_tokens": input_tokens,
                "output_tokens": 1,
                "cache_read_input_tokens": cache_read,
                "cache_creation_input_tokens": cache_write,
            },
        },
    }
    end: list[dict[str, Any]] = []
    if stop is not None:
        end = [
            {
                "type": "message_delta",
                "delta": {"stop_reason": stop, "stop_sequence": None},
                "usage": {"output_tokens": output_tokens},
            },
            {"type": "message_stop"},
        ]
    return [head, *events, *end]


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    """One content block of a message stream."""
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_block(index: int, *pieces: str) -> list[dict[str, Any]]:
    """A text block."""
    return block(
        index,
        {"type": "text", "text": ""},
        *({"type": "text_delta", "text": piece} for piece in pieces),
    )


def tool_block(index: int, call_id: str, name: str, *pieces: str) -> list[dict[str, Any]]:
    """A tool call block."""
    return block(
        index,
        {"type": "tool_use", "id": call_id, "name": name, "input": {}},
        *({"type": "input_json_delta", "partial_json": piece} for piece in pieces),
    )


def thinking_block(index: int, signature: str, *pieces: str) -> list[dict[str, Any]]:
    """A thinking block with its signature."""
    return block(
        index,
        {"type": "thinking", "thinking": "", "signature": ""},
        *({"type": "thinking_delta", "thinking": piece} for piece in pieces),
        {"type": "signature_delta", "signature": signature},
    )


def response_object(
    output: Sequence[dict[str, Any]] = (), status: str = "completed", **more: Any
) -> dict[str, Any]:
    """A response of the responses wire."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5",
        "status": status,
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "temperature": 1.0,
        "top_p": 1.0,
        "usage": {
            "input_tokens": 10,
            "output_tokens": 5,
            "total_tokens": 15,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens_details": {"reasoning_tokens": 2},
        },
        **more,
    }


def message_item(text: str, item_id: str = "msg_1") -> dict[str, Any]:
    """A finished text item."""
    return {
        "id": item_id,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }


def call_item(call_id: str, name: str, arguments: Any, item_id: str = "fc_1") -> dict[str, Any]:
    """A finished function call item."""
    return {
        "id": item_id,
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": json.dumps(arguments),
        "status": "completed",
    }


def reasoning_item(summary: str, encrypted: str, item_id: str = "rs_1") -> dict[str, Any]:
    """A finished reasoning item."""
    return {
        "id": item_id,
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": summary}] if summary else [],
        "encrypted_content": encrypted,
    }


def responses_stream(*items: dict[str, Any], status: str = "completed", **more: Any) -> Reply:
    """A streamed response of the responses wire, each item with its text in one delta."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": response_object(status="in_progress")}
    ]
    for index, item in enumerate(items):
        events += _item_events(index, item)
    events.append(
        {"type": f"response.{status}", "response": response_object(items, status, **more)}
    )
    return Reply(
        events=[{**event, "sequence_number": number} for number, event in enumerate(events)]
    )


def _item_events(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    place = {"item_id": item["id"], "output_index": index}
    begun = {**item, "status": "in_progress"}
    middle: list[dict[str, Any]] = []
    if item["type"] == "message":
        begun["content"] = []
        text = item["content"][0]["text"]
        part = {"type": "output_text", "text": "", "annotations": []}
        at = {**place, "content_index": 0}
        middle = [
            {"type": "response.content_part.added", "part": part, **at},
            {"type": "response.output_text.delta", "delta": text, "logprobs": [], **at},
            {"type": "response.output_text.done", "text": text, "logprobs": [], **at},
            {"type": "response.content_part.done", "part": item["content"][0], **at},
        ]
    elif item["type"] == "function_call":
        begun["arguments"] = ""
        middle = [
            {"type": "response.function_call_arguments.delta", "delta": item["arguments"], **place},
            {
                "type": "response.function_call_arguments.done",
                "arguments": item["arguments"],
                **place,
            },
        ]
    elif item["type"] == "reasoning":
        begun = {**item, "summary": [], "encrypted_content": None}
        for number, summary in enumerate(item["summary"]):
            at = {**place, "summary_index": number}
            middle += [
                {
                    "type": "response.reasoning_summary_part.added",
                    "part": {"type": "summary_text", "text": ""},
                    **at,
                },
                {"type": "response.reasoning_summary_text.delta", "delta": summary["text"], **at},
                {"type": "response.reasoning_summary_text.done", "text": summary["text"], **at},
                {"type": "response.reasoning_summary_part.done", "part": summary, **at},
            ]
    return [
        {"type": "response.output_item.added", "item": begun, "output_index": index},
        *middle,
        {"type": "response.output_item.done", "item": item, "output_index": index},
    ]
