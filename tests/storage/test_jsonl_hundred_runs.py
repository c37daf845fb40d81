"""A hundred real runs in one JSONL session: what is left of them after a compaction (§1.7, §3.13)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from harness.context import BACKGROUND
from harness.environment import Environment
from harness.messages import ToolResultMessage, text_result
from harness.models.registry import ModelRegistry
from harness.models.script import ScriptedRequest, ScriptedResponse, call, say, tokens
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.result import Ok
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.session.repo import CreateOptions
from harness.session.repo_files import JsonlSessions
from harness.storage.address import list_of
from harness.storage.jsonl import CompactionPolicy, JsonlStorage
from harness.storage.protocol import ListRead
from harness.testing.content import Content
from harness.testing.invariants import violations
from harness.tools.protocol import FunctionTool, ToolCallRequest

RUNS = 100
LOG = list_of(int, "app.log")


def _answer(request: ScriptedRequest) -> ScriptedResponse:
    if isinstance(request.context.messages[-1], ToolResultMessage):
        return say("an answer in some pieces", deltas=10, usage=tokens(10, 5))
    return call("work", {"n": 1}, usage=tokens(5, 5))


def _options() -> HarnessOptions:
    async def work(request: ToolCallRequest[None]):
        request.on_update(text_result("half done"), checkpoint=True)
        await request.invocation.set_memo("step", "one")
        return text_result("done")

    model = scripted_model(context_window=10_000_000)
    tool = FunctionTool("work", "works", {"type": "object"}, work)
    registry = ModelRegistry([(model, ScriptedProvider(_answer))])
    return HarnessOptions(models=registry, model=model, tools=(tool,))


async def test_a_hundred_runs_leave_entries_ledger_and_live_values(tmp_path: Path) -> None:
    never = CompactionPolicy(min_dead_bytes=1 << 40)
    repository = JsonlSessions(tmp_path, Environment.system(), policy=never)
    session = await repository.create(CreateOptions(), BACKGROUND)
    storage = session.storage
    assert isinstance(storage, JsonlStorage)
    harness, _ = await AgentHarness.create(session, _options(), BACKGROUND)
    for number in range(RUNS):
        outcome = await harness.prompt("go", BACKGROUND)
        assert isinstance(outcome, Ok)
        assert outcome.value.kind == "completed"
        await harness.tree.append_list(LOG, number, BACKGROUND)
    middle = await harness.tree.read_list(LOG, ListRead(limit=RUNS // 2), BACKGROUND)
    cursor = middle[-1].seq
    grown = storage.path.stat().st_size
    await storage.compact(BACKGROUND)
    assert storage.dead_bytes == 0
    assert storage.path.stat().st_size * 2 < grown

    records = [json.loads(line) for line in storage.path.read_text().splitlines()]
    kinds = Counter(
        record["kind"] + ("." + record["op"] if "op" in record else "") for record in records
    )
    # Prompt, call, result and answer of each run; a ledger row for each of its two responses.
    assert kinds == {
        "header": 1,
        "entry": 4 * RUNS,
        "usage": 2 * RUNS,
        "value.set": 4,
        "list.append": RUNS,
    }
    assert {record["namespace"] for record in records if "namespace" in record} == {
        "pi.lane.leaf",
        "pi.lane.config",
        "pi.lane.state",
        "pi.lane.lastResult",
        "app.log",
    }
    # Cursors taken before the compaction go on working after it, and after a reopening.
    for _ in range(2):
        later = await session.storage.read_list(LOG, ListRead(cursor=cursor), BACKGROUND)
        assert [element.value for element in later] == list(range(RUNS // 2, RUNS))
        earlier = await session.storage.read_list(
            LOG, ListRead(cursor=cursor, order="desc"), BACKGROUND
        )
        assert [element.value for element in earlier] == list(range(RUNS // 2 - 2, -1, -1))
        async with repository.snapshot(session.id, BACKGROUND) as (_, snapshot):
            assert violations(Content.of_snapshot(snapshot)) == []
        await session.close(BACKGROUND)
        session = await repository.open(session.metadata, BACKGROUND)
    await session.close(BACKGROUND)
