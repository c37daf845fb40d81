"""Random sessions with random deaths on two backends, for longer than the tests take: steps, and their rate.

A disagreement or a broken invariant ends the benchmark with the shrunk script of calls. The programs
differ from run to run; `SEED` makes them those of another run.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import tempfile
import time
from pathlib import Path

from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.bench.backends import database
from tests.bench.measure import Measure
from tests.postgres import Database
from tests.stateful.machine import machine
from tests.stateful.play import PLAY
from tests.stateful.stages import Backend, stage

STEPS: tuple[tuple[Backend, Backend, int], ...] = (
    ("memory", "jsonl", 10_000),
    ("memory", "sqlite", 10_000),
    ("memory", "postgres", 2_500),
)


async def run() -> list[dict[str, object]]:
    """`STEPS` steps of each pair; `STATEFUL_FACTOR` multiplies them."""
    number = int(os.environ.get("SEED") or secrets.randbelow(1 << 32))
    factor = float(os.environ.get("STATEFUL_FACTOR") or 1)
    print(f"SEED={number}")
    measures: list[Measure] = []
    async with database() as place:
        for left, right, steps in STEPS:
            # The stage has event loops of its own, so it lives on a thread of its own.
            measures += await asyncio.to_thread(
                _play, left, right, round(steps * factor), number, place
            )
    return [measure.as_json() for measure in measures]


def _play(left: Backend, right: Backend, steps: int, number: int, place: Database) -> list[Measure]:
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory() as folder,
        stage(left, right, Path(folder), lambda: place) as played,
    ):
        round_ = 0
        while played.steps < steps:
            played_by = seed(number + round_)(machine(played))
            run_state_machine_as_test(played_by, settings=settings(PLAY, max_examples=20))
            round_ += 1
        taken = played.steps
    seconds = time.perf_counter() - started
    name = f"{left} and {right}"
    return [
        Measure(f"stateful steps, {name}", taken, "steps", steps),
        Measure(f"stateful steps per second, {name}", taken / seconds, "1/s"),
    ]
