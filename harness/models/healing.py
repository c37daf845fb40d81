"""Makes a conversation acceptable to a provider: pure, when a request is built, never in the tree (§2.5).

Providers refuse what a long life leaves behind: a call whose process died before its result, a
result whose call was compacted away, empty text, thinking signed for another model. The healed
form depends on the messages alone, so that it grows at the tail like the conversation does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from harness.messages import (
    AssistantContent,
    AssistantMessage,
    ImageContent,
    InputContent,
    ProviderMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
    tool_calls,
)
from harness.models.foreign_signature import unpack
from harness.models.healing_pairs import pair_results
from harness.models.protocol import Model

NO_OUTPUT = "(no output)"
CONTINUE = "Continue."
_IMAGE_UNSUPPORTED = "(an image was here; this model does not take images)"
_IMAGE_BELOW = "(the image follows in the next message)"
_FOREIGN_ID = re.compile(r"[^A-Za-z0-9_-]")
_FOREIGN_ID_LENGTH = 40


@dataclass(frozen=True, slots=True)
class HealingTarget:
    """Whom the request goes to and what that wire takes.

    `result_images`: tool results may hold images. `unsigned_thinking`: thinking without a
    signature may be sent back.
    """

    provider: str
    model: str
    api: str
    images: bool = True
    result_images: bool = True
    unsigned_thinking: bool = True

    @staticmethod
    def of(model: Model) -> HealingTarget:
        """The target that a model's wire is known to be."""
        return HealingTarget(
            provider=model.provider,
            model=model.model_id,
            api=model.api,
            images=model.images,
            result_images=model.api != "openai-chat",
            unsigned_thinking=model.api == "openai-chat",
        )

    def made(self, message: AssistantMessage) -> bool:
        """Whether the message came from exactly this model over this wire."""
        return (message.provider, message.model, message.api) == (
            self.provider,
            self.model,
            self.api,
        )


def heal(
    messages: tuple[ProviderMessage, ...], target: HealingTarget
) -> tuple[ProviderMessage, ...]:
    """The conversation in a form that the target accepts. Healing twice changes nothing more."""
    cleaned = [clean for message in messages if (clean := _clean(message, target)) is not None]
    paired = pair_results(cleaned, lambda message: _call_id_rule(message, target))
    if not target.result_images:
        paired = list(_images_after_results(paired))
    return tuple(_with_edges(_merge(paired)))


def _clean(message: ProviderMessage, target: HealingTarget) -> ProviderMessage | None:
    match message:
        case UserMessage(content=content):
            cleaned = _input(content, target)
            return None if not cleaned else msgspec.structs.replace(message, content=cleaned)
        case ToolResultMessage(content=content):
            cleaned = _input(content, target) or (TextContent(text=NO_OUTPUT),)
            assert not isinstance(cleaned, str)
            return msgspec.structs.replace(message, content=cleaned)
        case AssistantMessage():
            return _clean_assistant(message, target)


def _input(
    content: str | tuple[InputContent, ...], target: HealingTarget
) -> str | tuple[InputContent, ...]:
    if isinstance(content, str):
        return content if content.strip() else ""
    parts: list[InputContent] = []
    for part in content:
        if isinstance(part, ImageContent) and not target.images:
            parts.append(TextContent(text=_IMAGE_UNSUPPORTED))
        elif isinstance(part, ImageContent) or part.text.strip():
            parts.append(part)
    return tuple(parts)


def _clean_assistant(message: AssistantMessage, target: HealingTarget) -> AssistantMessage | None:
    if message.stop_reason in ("error", "aborted", "deferred", "pending"):
        return None
    own = target.made(message)
    signed = _signed_ids(message)
    parts: list[AssistantContent] = []
    for part in message.content:
        match part:
            case TextContent(text=text):
                if text.strip():
                    parts.append(part if own else TextContent(text=text))
            case ThinkingContent():
                # Reasoning of another model is no part of its answer, and its signature is void here.
                if own and (
                    _is_signed(part, signed) or (target.unsigned_thinking and part.thinking.strip())
                ):
                    parts.append(part)
            case ToolCall():
                parts.append(part if own else msgspec.structs.replace(part, thought_signature=None))
    if not any(isinstance(part, TextContent | ToolCall) for part in parts):
        return None
    return msgspec.structs.replace(message, content=tuple(parts))


def _signed_ids(message: AssistantMessage) -> frozenset[str]:
    """The provider ids under which some thinking of the message is signed: one may have many parts."""
    sources = (
        unpack(part.thinking_signature)
        for part in message.content
        if isinstance(part, ThinkingContent)
    )
    return frozenset(source.id for source in sources if source.id and source.signature)


def _is_signed(part: ThinkingContent, signed: frozenset[str]) -> bool:
    source = unpack(part.thinking_signature)
    return bool(source.signature) or source.id in signed


def _call_id_rule(message: AssistantMessage, target: HealingTarget) -> Callable[[str], str]:
    if target.made(message):
        return lambda call_id: call_id or "call"
    # Ids that another provider made may be too long, or hold characters that this one refuses.
    return lambda call_id: _FOREIGN_ID.sub("_", call_id)[:_FOREIGN_ID_LENGTH] or "call"


def _images_after_results(messages: Iterable[ProviderMessage]) -> Iterable[ProviderMessage]:
    waiting: list[InputContent] = []
    stamp = 0
    for message in messages:
        if not isinstance(message, ToolResultMessage):
            if waiting:
                yield UserMessage(content=tuple(waiting), timestamp=stamp)
                waiting = []
            yield message
            continue
        images = [part for part in message.content if isinstance(part, ImageContent)]
        if not images:
            yield message
            continue
        stamp = message.timestamp
        waiting += [TextContent(text=f"Images from {message.tool_name}:"), *images]
        others = (part for part in message.content if not isinstance(part, ImageContent))
        note = TextContent(text=_IMAGE_BELOW)
        yield msgspec.structs.replace(message, content=(*others, note))
    if waiting:
        yield UserMessage(content=tuple(waiting), timestamp=stamp)


def _merge(messages: Iterable[ProviderMessage]) -> list[ProviderMessage]:
    merged: list[ProviderMessage] = []
    for message in messages:
        last = merged[-1] if merged else None
        if isinstance(message, UserMessage) and isinstance(last, UserMessage):
            joined = (*_parts(last.content), *_parts(message.content))
            merged[-1] = UserMessage(content=joined, timestamp=message.timestamp)
        elif isinstance(message, AssistantMessage) and isinstance(last, AssistantMessage):
            merged[-1] = msgspec.structs.replace(message, content=_joined(last, message))
        else:
            merged.append(message)
    return merged


def _joined(earlier: AssistantMessage, later: AssistantMessage) -> tuple[AssistantContent, ...]:
    # Only the newest of the two may open with its thinking, and only its signatures stay valid.
    # The earlier one has no calls: their results would stand between the two.
    thinking = tuple(part for part in later.content if isinstance(part, ThinkingContent))
    rest = tuple(part for part in later.content if not isinstance(part, ThinkingContent))
    said = tuple(
        TextContent(text=part.text) for part in earlier.content if isinstance(part, TextContent)
    )
    return (*thinking, *said, *rest)


def _parts(content: str | tuple[InputContent, ...]) -> tuple[InputContent, ...]:
    return (TextContent(text=content),) if isinstance(content, str) else content


def _with_edges(messages: list[ProviderMessage]) -> list[ProviderMessage]:
    if not messages:
        return messages
    first, last = messages[0], messages[-1]
    if not isinstance(first, UserMessage):
        messages = [UserMessage(content=CONTINUE, timestamp=first.timestamp), *messages]
    if isinstance(last, AssistantMessage) and not tool_calls(last):
        messages = [*messages, UserMessage(content=CONTINUE, timestamp=last.timestamp)]
    return messages
