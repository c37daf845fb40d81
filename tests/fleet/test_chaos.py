"""Fifty random kills under load: everything accepted reaches its end by itself, nothing is repeated."""

from __future__ import annotations

import pytest

from tests.fleet.chaos import Plan, judge, play
from tests.fleet.processes import FleetOfProcesses
from tests.fleet.user import User

pytestmark = [pytest.mark.timeout(1_800), pytest.mark.asyncio(loop_scope="module")]


async def test_fifty_random_kills(fleet: FleetOfProcesses, user: User) -> None:
    ledger = await play(fleet, user, Plan(kills=50))
    assert sum(ledger.killed.values()) == 50
    await judge(fleet, user, ledger)
