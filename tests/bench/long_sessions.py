"""Ten thousand entries in one branch: opening, scanning them all, building the context, forking while driven.

Times depend on the machine, so each is also given as a multiple of what plain `json.loads` takes for
the same ten thousand entries in the same run; the bars are on those. Another implementation of the
specification took 87 ms to open such a JSONL session, 2 ms for SQLite, and 75 ms to scan the SQLite
branch, on a machine of this kind.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path

from harness.codec import encode
from harness.context import BACKGROUND
from harness.models.script import Gate
from harness.result import Ok
from harness.runtime.harness import AgentHarness
from harness.session.fork import TreeFork
from harness.session.projection import load_context_entries, project_entry
from harness.storage.protocol import BranchScan, Storage
from harness.usage import ZERO_USAGE
from tests.bench.backends import database
from tests.bench.measure import Measure
from tests.session.ends import End, PostgresEnd, embedded
from tests.session.long import SIZE, LongHistory, write
from tests.session.test_long_sessions import fork, held_options
from tests.storage_pg.kit import Kit

ROUNDS = 7
NAMES = {"memory": "Memory", "jsonl": "JSONL", "sqlite": "SQLite", "postgres": "Postgres"}
# Multiples of the yardstick; opening a database must not read the session at all.
OPENING = {"jsonl": 2.5, "sqlite": 0.3, "postgres": 0.3}
SCANNING = {"memory": 0.25, "jsonl": 0.25, "sqlite": 2.5, "postgres": 6.0}


async def run() -> list[dict[str, object]]:
    """Every backend."""
    measures: list[Measure] = []
    for name in ("memory", "jsonl", "sqlite"):
        with tempfile.TemporaryDirectory() as folder:
            measures += await _measure(name, embedded(name, Path(folder)))
    async with database() as place:
        kit = await Kit.open(place)
        measures += await _measure("postgres", PostgresEnd(kit))
        await kit.close()
    return [measure.as_json() for measure in measures]


async def _measure(name: str, end: End) -> list[Measure]:
    session = await end.create()
    history = LongHistory()
    history.entries = history.samples.chain(None, SIZE)
    await write(session.storage, history)
    leaf = history.entries[-1].id
    session_id = session.id
    yardstick = await _yardstick(session.storage, leaf)
    await session.close(BACKGROUND)

    async def opening() -> None:
        nonlocal session
        session = await end.open(session_id)
        await AgentHarness.create(session, held_options(Gate()), BACKGROUND)

    async def scanning() -> None:
        found = await session.storage.scan_branch(BranchScan(start=leaf), BACKGROUND)
        assert len(found) == SIZE

    async def building() -> None:
        messages = 0
        for entry in await load_context_entries(session.storage, leaf, BACKGROUND):
            messages += len(await project_entry(entry, {}, BACKGROUND))
        assert messages == SIZE

    opened = await _best(opening, lambda: session.close(BACKGROUND))
    session = await end.open(session_id)
    scanned = await _best(scanning)
    built = await _best(building)
    await session.close(BACKGROUND)
    shown = NAMES[name]
    return [
        *_times(f"opening {SIZE} entries, {shown}", opened, yardstick, OPENING.get(name)),
        *_times(f"scanning {SIZE} entries, {shown}", scanned, yardstick, SCANNING[name]),
        *_times(f"context of {SIZE} entries, {shown}", built, yardstick, None),
        *await _fork(shown, end, session_id),
    ]


def _times(name: str, seconds: float, yardstick: float, bar: float | None) -> list[Measure]:
    return [
        Measure(name, seconds * 1_000, "ms"),
        Measure(f"{name}, against parsing", seconds / yardstick, "ratio", bar, at_most=True),
    ]


async def _best(
    work: Callable[[], Awaitable[None]], after: Callable[[], Awaitable[None]] | None = None
) -> float:
    """The fastest round, in seconds: what else the machine does only ever slows one."""
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        await work()
        best = min(best, time.perf_counter() - started)
        if after is not None:
            await after()
    return best


async def _yardstick(storage: Storage, leaf: str) -> float:
    lines = [
        encode(entry) for entry in await storage.scan_branch(BranchScan(start=leaf), BACKGROUND)
    ]
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for line in lines:
            json.loads(line)
        best = min(best, time.perf_counter() - started)
    return best


async def _fork(name: str, end: End, session_id: str) -> list[Measure]:
    """A fork of the whole tree in the middle of an answer: its time, its memory, what it leaves alone."""
    session = await end.open(session_id)
    before = await session.storage.get_stats(BACKGROUND)
    gate = Gate()
    harness, _ = await AgentHarness.create(session, held_options(gate), BACKGROUND)
    running = asyncio.ensure_future(harness.prompt("go on", BACKGROUND))
    await gate.reached()
    started = time.perf_counter()
    copy = await fork(end, session.metadata, TreeFork())
    seconds = time.perf_counter() - started
    charged = (await copy.storage.get_stats(BACKGROUND)).usage
    await copy.close(BACKGROUND)
    tracemalloc.start()
    held = tracemalloc.get_traced_memory()[0]
    again = await fork(end, session.metadata, TreeFork())
    peak = tracemalloc.get_traced_memory()[1] - held
    tracemalloc.stop()
    await again.close(BACKGROUND)
    gate.open()
    outcome = await running
    assert isinstance(outcome, Ok)
    unchanged = (await session.storage.get_stats(BACKGROUND)).usage == before.usage
    await harness.close(BACKGROUND)
    return [
        Measure(f"fork of {SIZE} entries while driven, {name}", seconds * 1_000, "ms"),
        Measure(f"fork of {SIZE} entries while driven, {name}, peak memory", peak / 1e6, "MB"),
        Measure(
            f"fork of {SIZE} entries while driven, {name}, ledgers as they should be",
            float(charged == ZERO_USAGE and unchanged),
            "yes/no",
            1,
        ),
    ]
