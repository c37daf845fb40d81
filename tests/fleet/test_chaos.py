"""A minute of everything that can go wrong, fifty kills among it: what was accepted ends, nothing is repeated."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fleet.chaos import Plan, everything, play, stage
from tests.fleet.trouble import Troubles
from tests.fleet.verdict import judge

pytestmark = pytest.mark.timeout(1_800)


async def test_a_minute_of_trouble_with_fifty_kills(tmp_path: Path) -> None:
    async with stage(tmp_path) as place:
        troubles = Troubles(seconds=60, kills=50, once=everything(place))
        ledger, watchman = await play(place, Plan(troubles))
        assert ledger.happened["kill"] >= 50
        assert set(ledger.happened) == {"kill", *troubles.once}
        await judge(place, ledger, watchman)
