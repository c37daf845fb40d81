"""What a caller may ask of a lane: prompt, skill, template, compaction, navigation (§5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from harness.errors import InvalidMessage
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    CustomMessage,
    ImageContent,
    InputContent,
    TextContent,
    ToolResultMessage,
    UserMessage,
)


class _Request(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
):
    """Common encoding rules of requests."""


class PromptRequest(_Request, frozen=True, kw_only=True, tag="prompt"):
    """Run with this text (and images), or with these complete messages."""

    prompt: str | AgentMessage | tuple[AgentMessage, ...]
    images: tuple[ImageContent, ...] = ()
    operation_id: str | None = None


class SkillRequest(_Request, frozen=True, kw_only=True, tag="skill"):
    """Run a skill by name."""

    name: str
    additional_instructions: str | None = None
    operation_id: str | None = None


class TemplateRequest(_Request, frozen=True, kw_only=True, tag="prompt_template"):
    """Run a prompt template by name."""

    name: str
    args: tuple[str, ...] = ()
    operation_id: str | None = None


class CompactionRequest(_Request, frozen=True, kw_only=True, tag="compaction"):
    """Compact the lane's context now."""

    custom_instructions: str | None = None
    operation_id: str | None = None


class NavigateOptions(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Whether a summary of what is left is made, how, and the label of where it ends."""

    summarize: bool = False
    label: str | None = None
    custom_instructions: str | None = None


class NavigationRequest(_Request, frozen=True, kw_only=True, tag="navigation"):
    """Move the lane to an entry (None: the root)."""

    target_id: str | None
    options: NavigateOptions = NavigateOptions()
    operation_id: str | None = None


OperationRequest: TypeAlias = (
    PromptRequest | SkillRequest | TemplateRequest | CompactionRequest | NavigationRequest
)


def normalize_input(
    message: str | AgentMessage | Sequence[AgentMessage],
    images: Sequence[ImageContent],
    *,
    lane: str,
    now: int,
) -> tuple[AgentMessage, ...] | InvalidMessage:
    """The messages that a caller's input means; empty text without images means none."""
    if isinstance(message, str):
        if not message and not images:
            return ()
        content: str | tuple[InputContent, ...] = message
        if images:
            text: tuple[InputContent, ...] = (TextContent(text=message),) if message else ()
            content = (*text, *images)
        return (UserMessage(content=content, timestamp=now),)
    if images:
        return _invalid(lane, "images go with text, or inside a complete message")
    messages = tuple(message) if isinstance(message, Sequence) else (message,)
    for item in messages:
        problem = _problem(item)
        if problem is not None:
            return _invalid(lane, problem)
    return messages


def _problem(message: AgentMessage) -> str | None:
    if isinstance(message, AssistantMessage) and message.stop_reason == "pending":
        return "an assistant message must be settled"
    if isinstance(message, ToolResultMessage) and not message.tool_call_id:
        return "a tool result needs the id of its call"
    if isinstance(message, UserMessage | CustomMessage) and not message.content:
        return "the message is empty"
    return None


def _invalid(lane: str, reason: str) -> InvalidMessage:
    return InvalidMessage(message=f"invalid message: {reason}", lane=lane, reason=reason)
