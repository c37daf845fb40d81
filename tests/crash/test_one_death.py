"""One death at each point of each scenario: before and after every commit, and around every effect.

Elsewhere than in memory, where a play takes longer, only after commits and around effects: before a
commit nothing more is durable than after the one before it.
"""

from __future__ import annotations

import pytest

from harness.testing.crash import PointKind
from harness.testing.playing import ALL_POINTS, play
from harness.testing.scenarios import SCENARIOS, Scenario
from tests.crash.conftest import NewSession

DISTINCT: frozenset[PointKind] = frozenset(("after commit", "effect"))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_ends_as_if_nothing_had_happened(
    scenario: Scenario, new_session: NewSession, request: pytest.FixtureRequest
) -> None:
    backend = request.node.callspec.params["new_session"]
    kinds = ALL_POINTS if backend == "memory" else DISTINCT
    uninterrupted = await play(scenario, new_session(), kinds=kinds)
    assert uninterrupted.end is not None
    assert uninterrupted.problems == []
    problems: list[str] = []
    deaths = 0
    while True:
        played = await play(scenario, new_session(), (deaths + 1,), kinds)
        if not played.deaths:
            break
        deaths += 1
        problems += played.judge(uninterrupted.end)
    # On a backend with threads the order of frames and effects may vary a little, not more.
    assert abs(deaths - len(uninterrupted.points[0])) <= 3
    assert problems == []
