"""What a run writes to a JSONL session, and what a compaction leaves of a hundred of them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from harness.context import BACKGROUND
from harness.environment import Environment
from harness.runtime.harness import AgentHarness
from harness.session.repo import CreateOptions
from harness.session.repo_files import JsonlSessions
from harness.storage.jsonl import CompactionPolicy, JsonlStorage
from tests.bench.measure import Measure
from tests.bench.runs import RUNS, options, repeat

NEVER = CompactionPolicy(min_dead_bytes=1 << 40)


async def run() -> list[dict[str, object]]:
    """Text runs of 20 deltas, and runs with one tool turn."""
    measures: list[Measure] = []
    for kind in ("text run", "tool run"):
        with tempfile.TemporaryDirectory() as folder:
            measures += await _grow(Path(folder), kind)
    return [measure.as_json() for measure in measures]


async def _grow(folder: Path, kind: str) -> list[Measure]:
    repository = JsonlSessions(folder, Environment.system(), policy=NEVER)
    session = await repository.create(CreateOptions(), BACKGROUND)
    storage = session.storage
    assert isinstance(storage, JsonlStorage)
    harness, _ = await AgentHarness.create(session, options(kind), BACKGROUND)
    empty = storage.path.stat().st_size
    await repeat(harness, RUNS)
    grown = storage.path.stat().st_size - empty
    await storage.compact(BACKGROUND)
    left = storage.path.stat().st_size - empty
    await harness.close(BACKGROUND)
    return [
        Measure(f"{kind}, JSONL, written", grown / RUNS, "bytes/run"),
        Measure(f"{kind}, JSONL, left after compaction", left / RUNS, "bytes/run"),
        Measure(f"{kind}, JSONL, share left after compaction", left / grown, "ratio"),
    ]
