"""The growing projection of a lane: the form in which its messages go to a provider."""

from __future__ import annotations

import pytest

from harness.context import BACKGROUND
from harness.entries import MessageEntry
from harness.messages import AgentMessage, CustomMessage, UserMessage
from harness.models.conversion import to_provider_messages
from harness.session.projection import LiveContext
from harness.storage.memory import MemoryStorage
from harness.testing.virtual_clock import VirtualClock


def text(number: int) -> AgentMessage:
    return UserMessage(content=f"text {number}", timestamp=number)


def note(number: int) -> AgentMessage:
    return CustomMessage(
        custom_type="note", content=f"note {number}", display=True, timestamp=number
    )


@pytest.mark.parametrize(
    "talk",
    [
        [text(number) for number in range(6)],
        [text(0), text(1), note(2), text(3)],
        [note(0), text(1), text(2)],
    ],
    ids=["every message as it is", "one that changes its form", "the first changes its form"],
)
async def test_growing_and_whole_conversion_agree(talk: list[AgentMessage]) -> None:
    storage = MemoryStorage(VirtualClock())
    context = LiveContext()
    assert await context.messages(storage, None, {}, BACKGROUND) == ()
    leaf: str | None = None
    for number, message in enumerate(talk):
        entry = MessageEntry(
            id=f"e{number}", parent_id=leaf, seq=number + 1, timestamp=number, message=message
        )
        context.appended(entry)
        leaf = entry.id
        messages = await context.messages(storage, leaf, {}, BACKGROUND)
        assert messages == tuple(talk[: number + 1])
        converted = context.converted(messages, to_provider_messages)
        assert converted == to_provider_messages(messages)
        # Asked again, as by a retry, it is the same.
        assert context.converted(messages, to_provider_messages) == converted
