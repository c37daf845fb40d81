"""A steer sent at every commit of a run: exactly once in the transcript, or still queued, or refused (§3.11)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from harness.context import BACKGROUND, Context
from harness.messages import AgentToolResult, text_result
from harness.models.script import Call, call, calls, say
from harness.operation.results import QueuedEntry
from harness.operation.state import RunState
from harness.result import Ok, Result
from harness.storage.protocol import CommitResult
from harness.storage.writes import Write
from harness.testing.decorated import StorageDecorator
from harness.testing.judging import branch, canonical_entry, invariant_problems
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage


class At(StorageDecorator):
    """Steers when commit number `number` arrives."""

    def __init__(self, stage: Stage, number: int) -> None:
        super().__init__(stage.gated.inner)
        self.number = number
        self.stage = stage
        self.commits = 0
        self.steering: asyncio.Task[Result[QueuedEntry, object]] | None = None

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        self.commits += 1
        if self.commits == self.number:
            # Not awaited here: it stands behind this commit on the lane's line.
            self.steering = asyncio.ensure_future(self.stage.harness.steer("mind this", BACKGROUND))  # type: ignore[arg-type]
        return await super().commit(writes, context)


async def run(number: int) -> tuple[Stage, At]:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        request.on_update(text_result("half"), checkpoint=True)
        return text_result("done")

    stage = Stage()
    stage.tool("t", work).tool("u", work)
    stage.script(
        lambda request: [calls(Call("t"), Call("u")), call("t"), *[say("done")] * 9][request.turn]
    )
    await stage.open()
    at = At(stage, number)
    stage.gated.inner = at
    await stage.prompt()
    return stage, at


async def test_a_steer_at_each_commit() -> None:
    number = 0
    refused = 0
    while True:
        number += 1
        stage, at = await run(number)
        if at.steering is None:
            break
        sent = await at.steering
        texts = [canonical_entry(entry) for entry in await branch(stage.memory)]
        times = texts.count(("user", "mind this"))
        if isinstance(sent, Ok):
            queued = 0
            operation = stage.lane.projection.operation
            if operation is not None and isinstance(operation.state, RunState):
                queued = len(operation.state.inbox.steer)
            assert times + queued == 1, f"at commit {number}"
        else:
            refused += 1
            assert times == 0, f"at commit {number}"
        assert await invariant_problems(stage.memory, set()) == [], f"at commit {number}"
        await stage.close()
    await stage.close()
    assert number > 30
    # Only the acceptance, where the run does not exist yet, and its end, where it is over.
    assert refused == 1, "the terminal commit"


@pytest.mark.parametrize("number", [1])
async def test_at_the_acceptance_the_steer_waits_for_the_run(number: int) -> None:
    stage, at = await run(number)
    assert at.steering is not None
    assert isinstance(await at.steering, Ok)
    await stage.close()
