"""Does a long conversation slow a turn? The same turn at 10 and at 10,000 entries, model excluded."""

from __future__ import annotations

import statistics
import time

from harness.context import BACKGROUND
from harness.messages import UserMessage
from harness.models.registry import ModelRegistry
from harness.models.script import say
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.settings import CompactionSettings
from tests.bench.backends import NewSession, database, embedded, postgres
from tests.bench.measure import Measure

SHORT = 10
LONG = 10_000
ROUNDS = 25
PER_ROUND = 4


async def _filled(new: NewSession, entries: int) -> AgentHarness:
    provider = ScriptedProvider(lambda request: say("an answer of some words", deltas=5))
    model = scripted_model(context_window=100_000_000)
    options = HarnessOptions(
        models=ModelRegistry([(model, provider)]),
        model=model,
        compaction=CompactionSettings(enabled=False),
    )
    harness, _ = await AgentHarness.create(await new(), options, BACKGROUND)
    for number in range(entries):
        message = UserMessage(content=f"entry number {number} of a long talk", timestamp=number)
        await harness.tree.append_message(message, BACKGROUND)
    return harness


async def _turns(harness: AgentHarness) -> float:
    started = time.perf_counter()
    for _ in range(PER_ROUND):
        await harness.prompt("go", BACKGROUND)
    return (time.perf_counter() - started) / PER_ROUND


async def _compare(name: str, new: NewSession) -> list[Measure]:
    short, long = await _filled(new, SHORT), await _filled(new, LONG)
    await _turns(short)
    await _turns(long)
    rounds = [(await _turns(short), await _turns(long)) for _ in range(ROUNDS)]
    await short.close(BACKGROUND)
    await long.close(BACKGROUND)
    ratio = statistics.median(late / early for early, late in rounds)
    return [
        Measure(f"turn at {SHORT} entries, {name}", _ms(rounds, 0), "ms"),
        Measure(f"turn at {LONG} entries, {name}", _ms(rounds, 1), "ms"),
        Measure(f"turn at {LONG} against {SHORT}, {name}", ratio, "ratio", 1.2, at_most=True),
    ]


def _ms(rounds: list[tuple[float, float]], index: int) -> float:
    return statistics.median(pair[index] for pair in rounds) * 1_000


async def run() -> list[dict[str, object]]:
    """Memory and Postgres."""
    async with embedded("Memory") as new:
        measures = await _compare("Memory", new)
    async with database() as place, postgres(place) as new:
        measures += await _compare("Postgres", new)
    return [measure.as_json() for measure in measures]
