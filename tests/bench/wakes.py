"""How late waits for a retry end: a thousand of them, by the owner that waits and by whoever comes for what is due."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from typing import Any

from harness.operation.events import RetryScheduled
from storage_pg.due import DueAt
from tests.bench.backends import database
from tests.bench.measure import Measure, share_of
from tests.bench.requests import Requests
from tests.postgres import Database
from tests.workers.kit import Fleet
from workers.memory import settle

WAITS = 1_000
# New operations per second, evenly: each is driven twice, and about a hundred others wait beside them. It is
# about two thirds of what two cores carry. Faster, a backlog is measured and no lateness.
_RATE = 40
_SHORTEST_MS, _LONGEST_MS = 50, 5_000
# An instant is whole milliseconds.
_EARLY_MS = -1.0


async def _timers(late: list[float]) -> None:
    """How late a plain timer of this process rings: what no scheduler can be better than."""
    while True:
        begun = time.perf_counter()
        await asyncio.sleep(0.01)
        late.append((time.perf_counter() - begun - 0.01) * 1000)


async def wakes(db: Database, *, hold_due_ms: int) -> tuple[list[float], list[float]]:
    """How late each of the waits ended on one worker, and how late plain timers did (ms)."""
    timers: list[float] = []
    watching = asyncio.ensure_future(_timers(timers))
    fleet = Fleet(db)
    worker = await fleet.worker(
        hold_due_ms=hold_due_ms,
        retry_max=1,
        retry_base_ms=10,
        max_drives=64,
        pool_size=8,
    )
    settle()
    requests = Requests()
    late: list[float] = []
    attach = worker.registry._attach

    async def attaching(owned: Any) -> Any:
        live = await attach(owned)

        async def scheduled(_event: RetryScheduled, _context: object) -> None:
            (operation,) = live._storage.open_operations()
            assert isinstance(operation.due, DueAt)
            due = time.perf_counter() + operation.due.instant / 1000 - time.time()
            asked = requests.next(live.session_id)
            asked.add_done_callback(lambda done: late.append((done.result() - due) * 1000))

        live.harness.events.on(RetryScheduled, scheduled)
        return live

    worker.registry._attach = attaching
    waits = random.Random(1)
    begun = time.perf_counter()
    for number in range(WAITS):
        await asyncio.sleep(begun + number / _RATE - time.perf_counter())
        session = await fleet.session()
        prompt = _failing(waits.randint(_SHORTEST_MS, _LONGEST_MS))
        await fleet.prompt(worker, session, prompt)
    # Asked rarely: what asks shares the processor with what is measured.
    while await fleet.sql("SELECT 1 FROM laneway.open_operations LIMIT 1"):  # noqa: ASYNC110
        await asyncio.sleep(0.25)
    await fleet.close()
    requests.close()
    watching.cancel()
    await asyncio.wait([watching])
    return late, timers


def _failing(wait_ms: int) -> str:
    return "fail: " + json.dumps(
        {"message": "overloaded", "kind": "retryable", "retryAfterMs": wait_ms}
    )


def _measures(name: str, late: Sequence[float], timers: Sequence[float]) -> list[Measure]:
    ordered = sorted(late)
    early = sum(lateness < _EARLY_MS for lateness in ordered)
    return [
        Measure(f"{name}, median", share_of(ordered, 0.5), "ms"),
        Measure(f"{name}, p99", share_of(ordered, 0.99), "ms", 100.0, at_most=True),
        Measure(f"{name}, most", ordered[-1], "ms"),
        Measure(f"{name}, early", float(early), "waits", 0.0, at_most=True),
        Measure(f"{name}, lost", float(WAITS - len(ordered)), "waits", 0.0, at_most=True),
        Measure(f"{name}, a plain timer's p99", share_of(sorted(timers), 0.99), "ms"),
    ]


async def run() -> list[dict[str, object]]:
    """Both ways, each on a database of its own."""
    rows: list[Measure] = []
    async with database() as db:
        rows += _measures("lateness of a retry, by the owner", *await wakes(db, hold_due_ms=5_000))
    async with database() as db:
        rows += _measures("lateness of a retry, by the dispatcher", *await wakes(db, hold_due_ms=0))
    return [row.as_json() for row in rows]
