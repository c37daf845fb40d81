"""Five minutes of trouble for two hundred lanes: does everything accepted reach its end, and nothing twice?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from tests.bench.measure import Measure
from tests.fleet.chaos import Plan, everything, play, stage
from tests.fleet.trouble import Troubles
from tests.fleet.verdict import judge
from tests.fleet.watchman import LEFT_ALONE_SECONDS


async def run() -> list[dict[str, object]]:
    """Play and judge; a broken promise raises, so the bars are met only when none was broken."""
    with tempfile.TemporaryDirectory() as folder:
        async with stage(Path(folder)) as place:
            started = time.monotonic()
            troubles = Troubles(seconds=300, kills=200, once=everything(place) * 3)
            plan = Plan(troubles, tenants=5, sessions=60, lanes=200, idle=(0.0, 10.0), seed=3)
            ledger, watchman = await play(place, plan)
            await judge(place, ledger, watchman)
            seconds = time.monotonic() - started
    ended = len(ledger.receipts) / len(ledger.accepted)
    steers = [fate for _, fate in ledger.steers.values()]
    happened = [
        Measure(f"troubles: {kind}", float(number), "times").as_json()
        for kind, number in sorted(ledger.happened.items())
    ]
    return [
        *happened,
        Measure("operations accepted in trouble", float(len(ledger.accepted)), "runs").as_json(),
        Measure("of these ended by themselves, none repeated", ended, "share", 1.0).as_json(),
        Measure(
            "of these failed for want of retries", float(ledger.outcomes["failed"]), "runs"
        ).as_json(),
        Measure(
            "steers accepted, each once in the transcript",
            float(steers.count("accepted")),
            "steers",
        ).as_json(),
        Measure(
            "steers refused, none in the transcript", float(steers.count("refused")), "steers"
        ).as_json(),
        Measure(
            "requests that the model server counted", float(len(place.model.counted)), "requests"
        ).as_json(),
        Measure(
            "looks at owners and due work, none broken", float(watchman.looks), "looks"
        ).as_json(),
        Measure(
            "longest time due without a live owner",
            watchman.longest_alone,
            "s",
            LEFT_ALONE_SECONDS,
            at_most=True,
        ).as_json(),
        Measure("seconds for all of it", seconds, "s").as_json(),
    ]
