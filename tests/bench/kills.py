"""Five hundred random kills under load: does everything accepted reach its end, and nothing twice?"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.bench.backends import database
from tests.bench.measure import Measure
from tests.fleet.chaos import Plan, judge, play
from tests.fleet.processes import FleetOfProcesses
from tests.fleet.user import User

KILLS = 500


async def run() -> list[dict[str, object]]:
    """Play and judge; a broken promise raises, so the bar is met only when none was broken."""
    with tempfile.TemporaryDirectory() as folder:
        async with database() as place:
            fleet = FleetOfProcesses(place, Path(folder))
            user = User(await fleet.tenant(), lambda: [api.url for api in fleet.of("api")])
            started = time.monotonic()
            try:
                ledger = await play(fleet, user, Plan(kills=KILLS, seed=2))
                await judge(fleet, user, ledger)
            finally:
                await user.close()
                await fleet.stop()
            seconds = time.monotonic() - started
    outcomes = Counter(ledger.receipts.values())
    ended = sum(outcomes.values()) / len(ledger.accepted)
    return [
        Measure("processes killed", float(sum(ledger.killed.values())), "kills").as_json(),
        Measure("operations accepted under kills", float(len(ledger.accepted)), "runs").as_json(),
        Measure("of these ended by themselves, none repeated", ended, "share", 1.0).as_json(),
        Measure("of these failed for want of retries", float(outcomes["failed"]), "runs").as_json(),
        Measure("seconds for all of it", seconds, "s").as_json(),
    ]
