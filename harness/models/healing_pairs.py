"""Puts every tool call and its one result together, in order, under unique ids (§2.5)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import msgspec

from harness.messages import (
    AssistantContent,
    AssistantMessage,
    ProviderMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)

NO_RESULT = "No result of this call was recorded; whether it took effect is unknown."
# Up to this length an id may grow; beyond it the number takes the place of the id's end.
_COMMON_ID_LENGTH = 40


@dataclass(slots=True)
class _Pairing:
    """Which result answers which call; calls are named by message position and content index."""

    results: dict[tuple[int, int], ToolResultMessage] = field(
        default_factory=dict[tuple[int, int], ToolResultMessage]
    )
    used: set[int] = field(default_factory=set[int])


def pair_results(
    messages: Sequence[ProviderMessage],
    id_rule: Callable[[AssistantMessage], Callable[[str], str]],
) -> list[ProviderMessage]:
    """The messages with each call followed by exactly one result, in the order of the calls.

    A call without a result gets an error result; a second result of a call is dropped; a result
    without a call becomes user text. `id_rule` gives the rewriting of a message's call ids, on top
    of which repeated ids are numbered.
    """
    pairing = _pair(messages)
    known = {
        part.id
        for message in messages
        if isinstance(message, AssistantMessage)
        for part in message.content
        if isinstance(part, ToolCall)
    }
    taken: set[str] = set()
    healed: list[ProviderMessage] = []
    for position, message in enumerate(messages):
        match message:
            case UserMessage():
                healed.append(message)
            case AssistantMessage():
                healed += _with_results(message, position, pairing, id_rule(message), taken)
            case ToolResultMessage():
                if position not in pairing.used and message.tool_call_id not in known:
                    healed.append(_as_text(message))
            case _:
                assert_never(message)
    return healed


def _pair(messages: Sequence[ProviderMessage]) -> _Pairing:
    pairing = _Pairing()
    unanswered: list[tuple[int, int, str]] = []
    for position, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            near = _by_call_id(messages, _following(messages, position))
            for index, part in enumerate(message.content):
                if not isinstance(part, ToolCall):
                    continue
                if not _take(pairing, (position, index), near.get(part.id)):
                    unanswered.append((position, index, part.id))
    if unanswered:
        # What strayed from its place, before its call or after a later response, still answers it.
        everywhere = _by_call_id(messages, range(len(messages)))
        for position, index, call_id in unanswered:
            _take(pairing, (position, index), everywhere.get(call_id))
    return pairing


_Placed: TypeAlias = tuple[int, ToolResultMessage]


def _following(messages: Sequence[ProviderMessage], position: int) -> range:
    end = position + 1
    while end < len(messages) and not isinstance(messages[end], AssistantMessage):
        end += 1
    return range(position + 1, end)


def _by_call_id(messages: Sequence[ProviderMessage], where: range) -> dict[str, deque[_Placed]]:
    found: dict[str, deque[_Placed]] = {}
    for position in where:
        message = messages[position]
        if isinstance(message, ToolResultMessage):
            found.setdefault(message.tool_call_id, deque()).append((position, message))
    return found


def _take(pairing: _Pairing, call: tuple[int, int], candidates: deque[_Placed] | None) -> bool:
    while candidates:
        position, message = candidates.popleft()
        if position not in pairing.used:
            pairing.results[call] = message
            pairing.used.add(position)
            return True
    return False


def _with_results(
    message: AssistantMessage,
    position: int,
    pairing: _Pairing,
    rule: Callable[[str], str],
    taken: set[str],
) -> list[ProviderMessage]:
    content: list[AssistantContent] = []
    results: list[ProviderMessage] = []
    for index, part in enumerate(message.content):
        if not isinstance(part, ToolCall):
            content.append(part)
            continue
        call_id = _unique(rule(part.id), taken)
        content.append(part if part.id == call_id else msgspec.structs.replace(part, id=call_id))
        found = pairing.results.get((position, index))
        results.append(
            _missing(part, call_id, message.timestamp)
            if found is None
            else msgspec.structs.replace(found, tool_call_id=call_id, tool_name=part.name)
        )
    return [msgspec.structs.replace(message, content=tuple(content)), *results]


def _unique(call_id: str, taken: set[str]) -> str:
    candidate, number = call_id, 2
    length = max(len(call_id), _COMMON_ID_LENGTH)
    while candidate in taken:
        suffix = f"_{number}"
        candidate = call_id[: length - len(suffix)] + suffix
        number += 1
    taken.add(candidate)
    return candidate


def _missing(call: ToolCall, call_id: str, timestamp: int) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id,
        tool_name=call.name,
        content=(TextContent(text=NO_RESULT),),
        is_error=True,
        timestamp=timestamp,
    )


def _as_text(message: ToolResultMessage) -> UserMessage:
    note = TextContent(text=f"(Result of an earlier call of the tool {message.tool_name}:)")
    return UserMessage(content=(note, *message.content), timestamp=message.timestamp)
