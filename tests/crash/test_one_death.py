"""One death at each point of each scenario: before and after every commit, and around every effect."""

from __future__ import annotations

import pytest

from harness.testing.playing import play
from harness.testing.scenarios import SCENARIOS, Scenario
from tests.crash.conftest import NewSession


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_ends_as_if_nothing_had_happened(scenario: Scenario, new_session: NewSession) -> None:
    uninterrupted = await play(scenario, new_session())
    assert uninterrupted.end is not None
    assert uninterrupted.problems == []
    problems: list[str] = []
    deaths = 0
    while True:
        played = await play(scenario, new_session(), plan=(deaths + 1,))
        if not played.deaths:
            break
        deaths += 1
        problems += played.judge(uninterrupted.end)
    # On a backend with threads the order of frames and effects may vary a little, not more.
    assert abs(deaths - len(uninterrupted.points[0])) <= 3
    assert problems == []
