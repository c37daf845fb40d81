"""Five hundred random kills under load: does everything accepted reach its end, and nothing twice?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.measure import Measure
from tests.fleet.chaos import Plan, play, stage
from tests.fleet.trouble import Troubles
from tests.fleet.verdict import judge

KILLS = 500


async def run() -> list[dict[str, object]]:
    """Play and judge; a broken promise raises, so the bar is met only when none was broken."""
    troubles = Troubles(seconds=0, kills=KILLS, weights={"kill": 1})
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder)) as place:
            started = time.monotonic()
            ledger, watchman = await play(place, Plan(troubles, seed=2))
            await judge(place, ledger, watchman)
            seconds = time.monotonic() - started
    ended = len(ledger.receipts) / len(ledger.accepted)
    failed = float(ledger.outcomes["failed"])
    return [
        Measure("processes killed", float(ledger.happened["kill"]), "kills").as_json(),
        Measure("operations accepted under kills", float(len(ledger.accepted)), "runs").as_json(),
        Measure("of these ended by themselves, none repeated", ended, "share", 1.0).as_json(),
        Measure("of these failed for want of retries", failed, "runs").as_json(),
        Measure("seconds for all of it", seconds, "s").as_json(),
    ]
