"""Turns pydantic-ai's stream events into ours, block by block (§3.7)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from harness.codec import JsonValue, foreign_json
from harness.errors import InvalidArgument
from harness.frames import (
    AssistantMessageFrame,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from harness.messages import TextContent, ThinkingContent, ToolCall
from harness.models.foreign_signature import Provenance, pack

if TYPE_CHECKING:
    from pydantic_ai.messages import (
        ModelResponsePart,
        ModelResponsePartDelta,
        ModelResponseStreamEvent,
        TextPart,
        ThinkingPart,
        ToolCallPart,
    )

    _Mapped: TypeAlias = TextPart | ThinkingPart | ToolCallPart

INVALID_ARGUMENTS = "INVALID_JSON"
_Kind: TypeAlias = Literal["text", "thinking", "tool-call"]
_REDACTED = "redacted_thinking"


@dataclass(slots=True)
class _Block:
    """One content block under way. `index` is its place in our message, given when it opens."""

    kind: _Kind
    part: _Mapped
    index: int | None = None
    call_id: str = ""
    ended: bool = False
    held: str = ""


class StreamAssembler:
    """Feeds on stream events and the final parts, and yields well-formed frames.

    A block opens with its first content, so that empty blocks never appear. Text and thinking end
    when the next part begins; tool calls end with the response, because the pieces of parallel
    calls may interleave.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        self._opened = 0
        self._call_ids: set[str] = set()

    def feed(self, event: ModelResponseStreamEvent) -> Iterator[AssistantMessageFrame]:
        """The frames of one event; kinds of part that we do not know yield none."""
        match event.event_kind:
            case "part_start":
                yield from self._start(event.index, event.part)
            case "part_delta":
                block = self._blocks.get(event.index)
                if block is None or block.ended:
                    return
                yield from self._add(block, _piece(event.delta))
            case "part_end":
                block = self._blocks.get(event.index)
                if block is not None and block.kind != "tool-call":
                    block.part = _mapped(event.part) or block.part
                    yield from self._end(block)
            case _:
                return

    def finish(self, parts: Sequence[ModelResponsePart]) -> Iterator[AssistantMessageFrame]:
        """End what is still open, with the final parts of the response."""
        for index, block in sorted(self._blocks.items()):
            final = _mapped(parts[index]) if index < len(parts) else None
            if final is not None and final.part_kind == block.kind:
                block.part = final
            yield from self._end(block)

    def _start(self, index: int, part: ModelResponsePart) -> Iterator[AssistantMessageFrame]:
        mapped = _mapped(part)
        before = self._blocks.pop(index, None)
        if before is not None and not before.ended:
            # The part at this place was replaced; what was streamed of it stays said.
            yield from self._end(before)
        if mapped is None:
            return
        block = self._blocks[index] = _Block(mapped.part_kind, mapped)
        match mapped.part_kind:
            case "text":
                yield from self._add(block, mapped.content)
            case "thinking":
                if mapped.signature:
                    yield from self._open(block)
                yield from self._add(block, mapped.content)
            case "tool-call":
                yield from self._open(block)
                yield from self._add(block, _arguments_text(mapped.args))

    def _open(self, block: _Block) -> Iterator[AssistantMessageFrame]:
        if block.index is not None:
            return
        index = block.index = self._opened
        self._opened += 1
        match block.kind:
            case "text":
                yield TextStart(content_index=index)
            case "thinking":
                yield ThinkingStart(content_index=index)
            case "tool-call":
                assert block.part.part_kind == "tool-call"
                block.call_id = self._unique(block.part.tool_call_id)
                yield ToolCallStart(
                    content_index=index, id=block.call_id, name=block.part.tool_name
                )

    def _unique(self, call_id: str) -> str:
        # Results are addressed by call id: a server that repeats one would mix them up.
        unique, number = call_id, 2
        while unique in self._call_ids:
            unique = f"{call_id}_{number}"
            number += 1
        self._call_ids.add(unique)
        return unique

    def _add(self, block: _Block, piece: str) -> Iterator[AssistantMessageFrame]:
        piece = block.held + piece
        block.held = ""
        if piece and "\ud800" <= piece[-1] <= "\udbff":
            # Half of a character: its other half comes with the next piece.
            piece, block.held = piece[:-1], piece[-1]
        if not piece:
            return
        yield from self._open(block)
        assert block.index is not None
        piece = join_surrogates(piece)
        match block.kind:
            case "text":
                yield TextDelta(content_index=block.index, delta=piece)
            case "thinking":
                yield ThinkingDelta(content_index=block.index, delta=piece)
            case "tool-call":
                yield ToolCallDelta(content_index=block.index, delta=piece)

    def _end(self, block: _Block) -> Iterator[AssistantMessageFrame]:
        if block.ended:
            return
        block.ended = True
        part = block.part
        if part.part_kind == "text" and part.content:
            yield from self._open(block)
        if part.part_kind == "thinking" and (part.content or part.signature):
            yield from self._open(block)
        if block.index is None:
            return
        match part.part_kind:
            case "text":
                yield TextEnd(
                    content_index=block.index,
                    content=TextContent(
                        text=join_surrogates(part.content),
                        text_signature=pack(Provenance(part.id, None, part.provider_details)),
                    ),
                )
            case "thinking":
                yield ThinkingEnd(content_index=block.index, content=_thinking(part))
            case "tool-call":
                yield ToolCallEnd(
                    content_index=block.index,
                    tool_call=ToolCall(
                        id=block.call_id,
                        name=part.tool_name,
                        arguments=parse_arguments(part.args),
                        thought_signature=pack(Provenance(part.id, None, part.provider_details)),
                    ),
                )


def _mapped(part: ModelResponsePart) -> _Mapped | None:
    match part.part_kind:
        case "text" | "thinking" | "tool-call":
            return part
        case _:
            return None


def _thinking(part: ThinkingPart) -> ThinkingContent:
    redacted = part.id == _REDACTED
    provenance = Provenance(None if redacted else part.id, part.signature, part.provider_details)
    return ThinkingContent(
        thinking=join_surrogates(part.content),
        thinking_signature=pack(provenance),
        redacted=redacted,
    )


def _arguments_text(args: str | Mapping[str, object] | None) -> str:
    if args is None:
        return ""
    return args if isinstance(args, str) else json.dumps(args)


def _piece(delta: ModelResponsePartDelta) -> str:
    match delta.part_delta_kind:
        case "text":
            return delta.content_delta
        case "thinking":
            return delta.content_delta or ""
        case "tool_call":
            return _arguments_text(delta.args_delta)
        case _:
            return ""


def parse_arguments(args: str | Mapping[str, object] | None) -> dict[str, JsonValue]:
    """The arguments of a call; text that is no JSON object comes back under `INVALID_JSON`.

    Models write raw line breaks into strings, which strict JSON forbids: those are understood.
    """
    if not args:
        return {}
    if isinstance(args, str):
        try:
            # Deeply nested text overflows the parser's stack instead of failing to parse.
            parsed: object = json.loads(join_surrogates(args), strict=False)
        except (ValueError, RecursionError):
            parsed = None
    else:
        parsed = args
    if isinstance(parsed, Mapping):
        try:
            safe = foreign_json(cast("Mapping[str, object]", parsed))
        except InvalidArgument:
            safe = None
        if isinstance(safe, dict):
            return safe
    return {INVALID_ARGUMENTS: args if isinstance(args, str) else json.dumps(args, default=str)}


def join_surrogates(text: str) -> str:
    """The text with the two halves of a character put together, where both are there."""
    if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
