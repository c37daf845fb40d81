"""Random public calls with random deaths: both backends agree, and no invariant breaks, after every step.

20,000 steps in all; `make bench ONLY=stateful` takes more. A failure is printed as a script of calls,
shrunk; `python -m tests.stateful LEFT RIGHT < script` plays it again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import seed
from hypothesis.stateful import run_state_machine_as_test

from tests.postgres import Database
from tests.stateful.machine import machine
from tests.stateful.play import PLAY
from tests.stateful.stages import Backend, stage

# A seed of its own for each, so that no two play the same; a step on Postgres takes longer.
PAIRS: tuple[tuple[Backend, Backend, int, int], ...] = (
    ("memory", "jsonl", 1, 3_000),
    ("memory", "jsonl", 2, 3_000),
    ("memory", "sqlite", 3, 3_000),
    ("memory", "sqlite", 4, 3_000),
    ("jsonl", "sqlite", 5, 3_000),
    ("jsonl", "sqlite", 6, 3_000),
    ("memory", "postgres", 7, 1_000),
    ("sqlite", "postgres", 8, 1_000),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: processes die here, machines do not."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as made:
        yield Path(made)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("left", "right", "number", "steps"), PAIRS)
def test_two_backends_live_through_the_same(
    left: Backend,
    right: Backend,
    number: int,
    steps: int,
    folder: Path,
    request: pytest.FixtureRequest,
) -> None:
    def database() -> Database:
        found: Database = request.getfixturevalue("database")
        return found

    with stage(left, right, folder, database) as played:
        round_ = 0
        while played.steps < steps:
            run_state_machine_as_test(seed(number * 1_000 + round_)(machine(played)), settings=PLAY)
            round_ += 1
