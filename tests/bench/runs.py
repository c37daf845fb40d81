"""What one run costs on each backend: milliseconds, runs per second, commits, bytes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg

from harness.context import BACKGROUND
from harness.messages import ToolResultMessage, text_result
from harness.models.registry import ModelRegistry
from harness.models.script import ScriptedRequest, ScriptedResponse, call, say
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.result import Ok
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.tools.protocol import FunctionTool, ToolCallRequest
from tests.bench.backends import EMBEDDED, NewSession, database, embedded, postgres
from tests.bench.measure import Measure
from tests.postgres import Database

WARM_UP = 10
RUNS = 100
AT_ONCE = 32
TEXT = "a line of an answer " * 20


def _tool_turn(request: ScriptedRequest) -> ScriptedResponse:
    answered = isinstance(request.context.messages[-1], ToolResultMessage)
    return say(TEXT, deltas=20) if answered else call("work", {"n": 1})


def options(kind: str) -> HarnessOptions:
    model = scripted_model()
    if kind == "text run":
        provider = ScriptedProvider(lambda request: say(TEXT, deltas=20))
    else:
        provider = ScriptedProvider(_tool_turn)

    async def work(request: ToolCallRequest[Any]):
        return text_result("done")

    tool = FunctionTool("work", "works", {"type": "object"}, work)
    return HarnessOptions(models=ModelRegistry([(model, provider)]), model=model, tools=(tool,))


async def _harness(new: NewSession, kind: str) -> AgentHarness:
    harness, _ = await AgentHarness.create(await new(), options(kind), BACKGROUND)
    return harness


async def repeat(harness: AgentHarness, count: int) -> None:
    for _ in range(count):
        outcome = await harness.prompt("go", BACKGROUND)
        assert isinstance(outcome, Ok)
        assert outcome.value.kind == "completed", outcome


async def _measure(name: str, new: NewSession, kind: str) -> list[Measure]:
    harness = await _harness(new, kind)
    await repeat(harness, WARM_UP)
    started = time.perf_counter()
    await repeat(harness, RUNS)
    alone = time.perf_counter() - started
    await harness.close(BACKGROUND)
    many = [await _harness(new, kind) for _ in range(AT_ONCE)]
    started = time.perf_counter()
    await asyncio.gather(*(repeat(one, 10) for one in many))
    together = time.perf_counter() - started
    for one in many:
        await one.close(BACKGROUND)
    return [
        Measure(f"{kind}, {name}, one after another", alone / RUNS * 1_000, "ms"),
        Measure(f"{kind}, {name}, {AT_ONCE} at once", AT_ONCE * 10 / together, "runs/s"),
    ]


async def _footprint(place: Database, new: NewSession, kind: str) -> list[Measure]:
    harness = await _harness(new, kind)
    await repeat(harness, WARM_UP)
    before = await asyncio.to_thread(_counters, place)
    await repeat(harness, RUNS)
    after = await asyncio.to_thread(_counters, place)
    await harness.close(BACKGROUND)
    commits, wal, stored = (late - early for early, late in zip(before, after, strict=True))
    return [
        Measure(f"{kind}, Postgres, commits", commits / RUNS, "per run"),
        Measure(f"{kind}, Postgres, WAL", wal / RUNS, "bytes/run"),
        Measure(f"{kind}, Postgres, stored", stored / RUNS, "bytes/run"),
    ]


def _counters(place: Database) -> tuple[int, int, int]:
    with psycopg.connect(place.admin_dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        time.sleep(1.2)  # backends publish their counters at most once a second
        row = connection.execute(
            "SELECT (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()),"
            " pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint,"
            " pg_database_size(current_database())"
        ).fetchone()
    assert row is not None
    return int(row[0]), int(row[1]), int(row[2])


async def run() -> list[dict[str, object]]:
    """Every backend, for a text answer of 20 deltas and for a run with one tool turn."""
    measures: list[Measure] = []
    for kind in ("text run", "tool run"):
        for name in EMBEDDED:
            async with embedded(name) as new:
                measures += await _measure(name, new, kind)
        async with database() as place, postgres(place) as new:
            measures += await _measure("Postgres", new, kind)
            measures += await _footprint(place, new, kind)
    return [measure.as_json() for measure in measures]
