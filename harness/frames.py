"""Assistant stream events, their compact durable frames, and the reducer that rebuilds a partial (§3.7)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, assert_never

import msgspec

from harness.codec import JsonValue, decode
from harness.errors import InvariantDefect, StorageCorrupt
from harness.messages import (
    AssistantContent,
    AssistantMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
)


class _Frame(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="type",
):
    """Common encoding rules of stream events."""


class StartFrame(_Frame, frozen=True, kw_only=True, tag="start"):
    """The response began; `partial` is the message as known then, with stop reason "pending"."""

    partial: AssistantMessage


class TextStart(_Frame, frozen=True, kw_only=True, tag="text_start"):
    """A text block opened at `content_index`."""

    content_index: int


class TextDelta(_Frame, frozen=True, kw_only=True, tag="text_delta"):
    """Text was appended to the block at `content_index`."""

    content_index: int
    delta: str


class TextEnd(_Frame, frozen=True, kw_only=True, tag="text_end"):
    """The text block is complete; `content` is authoritative."""

    content_index: int
    content: TextContent


class ThinkingStart(_Frame, frozen=True, kw_only=True, tag="thinking_start"):
    """A thinking block opened."""

    content_index: int


class ThinkingDelta(_Frame, frozen=True, kw_only=True, tag="thinking_delta"):
    """Thinking was appended."""

    content_index: int
    delta: str


class ThinkingEnd(_Frame, frozen=True, kw_only=True, tag="thinking_end"):
    """The thinking block is complete; `content` is authoritative."""

    content_index: int
    content: ThinkingContent


class ToolCallStart(_Frame, frozen=True, kw_only=True, tag="toolcall_start"):
    """A tool call block opened."""

    content_index: int
    id: str
    name: str


class ToolCallDelta(_Frame, frozen=True, kw_only=True, tag="toolcall_delta"):
    """A piece of the call's JSON arguments arrived."""

    content_index: int
    delta: str


class ToolCallEnd(_Frame, frozen=True, kw_only=True, tag="toolcall_end"):
    """The tool call is complete; `tool_call` is authoritative."""

    content_index: int
    tool_call: ToolCall


class DoneEvent(_Frame, frozen=True, kw_only=True, tag="done"):
    """The response settled. Never stored as a frame."""

    message: AssistantMessage


class ErrorEvent(_Frame, frozen=True, kw_only=True, tag="error"):
    """The request failed; `message` has stop reason "error" or "aborted". Never stored as a frame."""

    message: AssistantMessage


AssistantMessageFrame: TypeAlias = (
    StartFrame
    | TextStart
    | TextDelta
    | TextEnd
    | ThinkingStart
    | ThinkingDelta
    | ThinkingEnd
    | ToolCallStart
    | ToolCallDelta
    | ToolCallEnd
)
AssistantMessageEvent: TypeAlias = AssistantMessageFrame | DoneEvent | ErrorEvent


def event_to_frame(event: AssistantMessageEvent) -> AssistantMessageFrame | None:
    """The frame to store for an event; terminal events have none."""
    if isinstance(event, DoneEvent | ErrorEvent):
        return None
    return event


@dataclass(slots=True)
class _Block:
    kind: str
    pieces: list[str] = field(default_factory=list[str])
    call_id: str = ""
    name: str = ""
    final: AssistantContent | None = None

    def content(self) -> AssistantContent:
        if self.final is not None:
            return self.final
        joined = "".join(self.pieces)
        if self.kind == "text":
            return TextContent(text=joined)
        if self.kind == "thinking":
            return ThinkingContent(thinking=joined)
        return ToolCall(id=self.call_id, name=self.name, arguments=_partial_arguments(joined))


def _partial_arguments(text: str) -> dict[str, JsonValue]:
    # A cut-off argument text is display material only: an interrupted call never runs.
    try:
        return decode(text, dict[str, Any])
    except StorageCorrupt:
        return {}


class PartialMessage:
    """Accumulates frames; `message()` is the partial so far. Blocks interleave by content index."""

    __slots__ = ("_blocks", "_start")

    def __init__(self) -> None:
        self._start: AssistantMessage | None = None
        self._blocks: dict[int, _Block] = {}

    def apply(self, frame: AssistantMessageFrame) -> None:
        """Add one frame in stream order; raises `InvariantDefect` for a frame without its block."""
        match frame:
            case StartFrame(partial=partial):
                self._start = partial
            case TextStart(content_index=index):
                self._blocks[index] = _Block("text")
            case ThinkingStart(content_index=index):
                self._blocks[index] = _Block("thinking")
            case ToolCallStart(content_index=index, id=call_id, name=name):
                self._blocks[index] = _Block("toolCall", call_id=call_id, name=name)
            case TextDelta(content_index=index, delta=delta):
                self._open(index).pieces.append(delta)
            case ThinkingDelta(content_index=index, delta=delta):
                self._open(index).pieces.append(delta)
            case ToolCallDelta(content_index=index, delta=delta):
                self._open(index).pieces.append(delta)
            case TextEnd(content_index=index, content=content):
                self._open(index).final = content
            case ThinkingEnd(content_index=index, content=content):
                self._open(index).final = content
            case ToolCallEnd(content_index=index, tool_call=call):
                self._open(index).final = call
            case _:
                assert_never(frame)

    def _open(self, index: int) -> _Block:
        block = self._blocks.get(index)
        if block is None:
            raise InvariantDefect(f"stream frame for block {index} that never started")
        return block

    def message(self) -> AssistantMessage | None:
        """The partial message, or None before a start frame arrived."""
        if self._start is None:
            return None
        blocks = tuple(self._blocks[index].content() for index in sorted(self._blocks))
        return msgspec.structs.replace(self._start, content=self._start.content + blocks)


def reduce_frames(frames: Iterable[AssistantMessageFrame]) -> AssistantMessage | None:
    """The partial message that a committed frame prefix describes (§3.7)."""
    partial = PartialMessage()
    for frame in frames:
        partial.apply(frame)
    return partial.message()
