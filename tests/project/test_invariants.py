"""Every invariant and every race has a row in the documentation, and every row has tests that exist."""

from __future__ import annotations

import ast
import dataclasses
import re
from functools import cache
from pathlib import Path

from harness.runtime.drive import DriveOptions

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "invariants.md"
INVARIANTS = 37
RACES = 28
_TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its two head lines."""
    section = PAGE.read_text().split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of the test functions and methods of a file."""
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, functions))


def test_each_invariant_has_its_row() -> None:
    numbers = [int(row[0]) for row in rows("Invariants")]
    assert numbers == list(range(1, INVARIANTS + 1))


def test_each_race_has_its_row() -> None:
    names = [row[0] for row in rows("Races")]
    assert len(set(names)) == RACES


def test_each_row_names_tests_that_exist() -> None:
    for row in (*rows("Invariants"), *rows("Races")):
        found = _TEST.findall(row[-1])
        assert found, f"no test for: {' | '.join(row[:-1])}"
        for path, name in found:
            assert (ROOT / path).is_file(), f"{path} is gone"
            assert name in names_in(path), f"{path} has no {name}"


def test_drive_has_no_time_limit() -> None:
    """Invariant 25: how long a pass may take is the host's business."""
    fields = {field.name for field in dataclasses.fields(DriveOptions)}
    assert fields == {"operation_id", "wait_for_retry", "poll_deferred"}
