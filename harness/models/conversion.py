"""What a model provider gets to see of a conversation: every kind of message as user, assistant or result (§2.5)."""

from __future__ import annotations

from typing import assert_never

from harness.messages import (
    AgentMessage,
    AssistantMessage,
    BranchSummaryMessage,
    CompactionSummaryMessage,
    CustomMessage,
    ProviderMessage,
    ToolResultMessage,
    UserMessage,
)

_COMPACTION = (
    "The earlier part of this conversation was condensed to save space. What follows in "
    "<summary> tags stands for it; carry on from there.\n\n<summary>\n{summary}\n</summary>"
)
_BRANCH = (
    "Before this point the conversation went another way and came back. What happened over "
    "there is summed up in <summary> tags.\n\n<summary>\n{summary}\n</summary>"
)


def to_provider_messages(messages: tuple[AgentMessage, ...]) -> tuple[ProviderMessage, ...]:
    """The messages with application messages and summaries turned into user input."""
    return tuple(_provider_message(message) for message in messages)


def _provider_message(message: AgentMessage) -> ProviderMessage:
    match message:
        case UserMessage() | AssistantMessage() | ToolResultMessage():
            return message
        case CustomMessage(content=content, timestamp=timestamp):
            return UserMessage(content=content, timestamp=timestamp)
        case CompactionSummaryMessage(summary=summary, timestamp=timestamp):
            return UserMessage(content=_COMPACTION.format(summary=summary), timestamp=timestamp)
        case BranchSummaryMessage(summary=summary, timestamp=timestamp):
            return UserMessage(content=_BRANCH.format(summary=summary), timestamp=timestamp)
        case _:
            assert_never(message)
