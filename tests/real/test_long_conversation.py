"""Forty turns with a real model whose window is too small for them: it compacts by itself and goes on."""

from __future__ import annotations

import pytest

from harness.compaction.tokens import estimate_tokens
from harness.entries import MessageEntry
from harness.messages import UserMessage, plain_text
from harness.settings import CompactionSettings
from tests.real.conftest import WINDOW
from tests.real.support import talking

pytestmark = [pytest.mark.xdist_group("local_model"), pytest.mark.timeout(600)]

TURNS = 40
PLACES = ("harbour", "lighthouse", "market", "old bridge", "railway station")


def prompt(turn: int) -> str:
    place = PLACES[turn % len(PLACES)]
    return (
        f"Note number {turn}: yesterday a fisherman told me that the {place} was painted in a new "
        "colour, and that everybody in town came to see it. Is that good news for us?"
    )


async def test_forty_turns_in_a_small_window(local_url: str) -> None:
    settings = CompactionSettings(reserve_tokens=WINDOW // 2, keep_recent_tokens=150)
    async with talking(
        local_url, "openai-chat", compaction=settings, max_tokens=64, answer_tokens=8
    ) as talk:
        for turn in range(TURNS):
            outcome = await talk.say(prompt(turn))
            assert outcome.kind == "completed", (turn, outcome.error)
        messages = [entry.message for entry in talk.entries() if isinstance(entry, MessageEntry)]
        assert sum(estimate_tokens(message) for message in messages) > WINDOW
        answers = talk.responses()
        assert len(answers) == TURNS, "nothing was asked twice"
        assert {message.stop_reason for message in answers} <= {"stop", "length"}
        assert all(plain_text(message.content).strip() for message in answers)
        assert all(message.usage.input + message.usage.cache_read < WINDOW for message in answers)
        compactions = talk.compactions()
        assert len(compactions) >= 2
        for entry in compactions:
            assert entry.summary.strip()
            assert entry.usage is not None
            assert entry.usage.output > 0
        # The last answers rest on a summary of summaries, not on the beginning.
        assert "<earlier-summary>" in plain_text(talk.provider.summaries[-1].messages[0].content)
        summary, *rest = talk.provider.answered[-1].messages
        assert compactions[-1].summary in plain_text(summary.content)
        notes = [plain_text(m.content) for m in rest if isinstance(m, UserMessage)]
        assert notes[-1] == prompt(TURNS - 1)
        assert prompt(0) not in notes
