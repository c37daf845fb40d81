"""Writes a conversation as plain text of bounded size, so that a model reads it instead of going on (§3.9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from harness.codec import encode_str
from harness.compaction.tokens import BYTES_PER_TOKEN, text_tokens
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    plain_text,
)
from harness.models.conversion import to_provider_messages

TOOL_TEXT_TOKENS = 500
_TIGHT_TOOL_TOKENS = 40
_TIGHT_TEXT_TOKENS = 80
_SEPARATOR = "\n\n"
# What one piece costs besides its text.
_SEPARATOR_TOKENS = 1
_DROPPED = "({} earlier parts of the conversation are left out here)"
_DROPPED_TOKENS = text_tokens(_DROPPED.format(10**9)) + _SEPARATOR_TOKENS


@dataclass(slots=True)
class _Piece:
    text: str
    tokens: int
    is_result: bool
    is_user: bool


def transcript(messages: Sequence[AgentMessage], budget: int | None = None) -> str:
    """The conversation as text, within `budget` tokens where one is given.

    What does not fit is shortened oldest first: tool outputs, then everything else; then the
    oldest parts go, except the beginning of the first user message, which usually holds the goal.
    """
    pieces = _pieces(messages)
    if budget is not None:
        pieces = _within(pieces, max(1, budget))
    return _SEPARATOR.join(piece.text for piece in pieces)


def shortened(text: str, tokens: int) -> str:
    """The text's beginning and end within about `tokens`, with a note of how much is missing."""
    if text_tokens(text) <= tokens:
        return text
    note = " … ({} characters left out) … "
    room = tokens * BYTES_PER_TOKEN - len(note.encode()) - 10
    if room <= 0:
        return _head(text, tokens * BYTES_PER_TOKEN)
    # The end of an output says how it ended, so it keeps a share of its own.
    tail = _tail(text, room // 3)
    head = _head(text, room - room // 3)
    return head + note.format(len(text) - len(head) - len(tail)) + tail


def _head(text: str, size: int) -> str:
    part = text[:size].encode("utf-8", "surrogatepass")[:size]
    return part.decode("utf-8", "ignore")


def _tail(text: str, size: int) -> str:
    part = text[max(0, len(text) - size) :].encode("utf-8", "surrogatepass")
    return part[max(0, len(part) - size) :].decode("utf-8", "ignore")


def _pieces(messages: Sequence[AgentMessage]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for message in to_provider_messages(tuple(messages)):
        match message:
            case UserMessage(content=content):
                pieces.append(_piece(f"[user] {_text(content)}", is_user=True))
            case AssistantMessage(content=parts):
                for part in parts:
                    match part:
                        case TextContent(text=text):
                            pieces.append(_piece(f"[assistant] {text}"))
                        case ToolCall(name=name, arguments=arguments):
                            pieces.append(_piece(f"[call] {name}({encode_str(arguments)})"))
                        case ThinkingContent():
                            pass
                        case _:
                            assert_never(part)
            case ToolResultMessage(content=content, is_error=is_error):
                mark = "error" if is_error else "result"
                text = shortened(_text(content), TOOL_TEXT_TOKENS)
                pieces.append(_piece(f"[{mark}] {text}", is_result=True))
            case _:
                assert_never(message)
    return pieces


def _piece(text: str, *, is_result: bool = False, is_user: bool = False) -> _Piece:
    return _Piece(text, text_tokens(text) + _SEPARATOR_TOKENS, is_result, is_user)


def _text(content: str | Sequence[TextContent | ImageContent]) -> str:
    if isinstance(content, str):
        return content
    images = sum(isinstance(part, ImageContent) for part in content)
    return plain_text(content) + (f" ({images} image(s))" if images else "")


def _within(pieces: list[_Piece], budget: int) -> list[_Piece]:
    excess = sum(piece.tokens for piece in pieces) - budget
    for piece in pieces:
        if piece.is_result and excess > 0:
            excess -= _shorten(piece, _TIGHT_TOOL_TOKENS)
    for piece in pieces:
        if not piece.is_result and excess > 0:
            excess -= _shorten(piece, _TIGHT_TEXT_TOKENS)
    if excess <= 0:
        return pieces
    return _newest(pieces, budget)


def _shorten(piece: _Piece, tokens: int) -> int:
    before = piece.tokens
    piece.text = shortened(piece.text, tokens)
    piece.tokens = text_tokens(piece.text) + _SEPARATOR_TOKENS
    return before - piece.tokens


def _newest(pieces: list[_Piece], budget: int) -> list[_Piece]:
    goal = next((piece for piece in pieces if piece.is_user), None)
    room = budget - _DROPPED_TOKENS
    if goal is not None:
        _shorten(goal, max(1, budget // 4))
        room -= goal.tokens
    kept: list[_Piece] = []
    for piece in reversed(pieces):
        if piece is goal:
            continue
        if piece.tokens > room:
            break
        room -= piece.tokens
        kept.append(piece)
    kept.reverse()
    dropped = len(pieces) - len(kept) - (goal is not None)
    middle = [_piece(_DROPPED.format(dropped))] if dropped else []
    fitting = [*([goal] if goal is not None else []), *middle, *kept]
    # A budget too small even for the note: as much of the newest as there is room for.
    if sum(piece.tokens for piece in fitting) > budget:
        _shorten(pieces[-1], max(1, budget - _SEPARATOR_TOKENS))
        return [pieces[-1]]
    return fitting
