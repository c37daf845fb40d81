"""A second death while the first one is being recovered from."""

from __future__ import annotations

import pytest

from harness.testing.playing import COMMITS, play
from harness.testing.scenarios import SCENARIOS, Scenario
from tests.crash.conftest import NewSession
from tests.crash.sessions import MemorySession

# Every n-th pair on the backends where a play takes longer.
STRIDE = {"memory": 1, "jsonl": 31, "sqlite": 43, "postgres": 31}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_recovery_may_die_as_well(
    scenario: Scenario, new_session: NewSession, request: pytest.FixtureRequest
) -> None:
    uninterrupted = await play(scenario, MemorySession())
    assert uninterrupted.end is not None
    stride = STRIDE[request.node.callspec.params["new_session"]]
    pairs = [
        (first + 1, second + 1)
        for first, points in enumerate(await _recoveries(scenario))
        for second in range(points)
    ]
    problems: list[str] = []
    for plan in pairs[::stride]:
        played = await play(scenario, new_session(), plan, COMMITS)
        problems += played.judge(uninterrupted.end)
    assert problems == []


async def _recoveries(scenario: Scenario) -> list[int]:
    """For a death after each commit, how many commits the recovery from it makes."""
    lengths: list[int] = []
    while True:
        played = await play(scenario, MemorySession(), (len(lengths) + 1,), COMMITS)
        if not played.deaths:
            return lengths
        lengths.append(len(played.points[1]))
