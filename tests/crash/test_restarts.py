"""Controlled restarts spend no retries: an interrupted attempt that made progress is no failure (design §6)."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import BACKGROUND
from harness.messages import AssistantMessage
from harness.models.script import (
    At,
    Gate,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    fail,
    say,
    steps,
)
from harness.settings import RetryPolicy
from harness.testing.judging import branch, invariant_problems
from tests.runtime.stage import Stage, ok, settle

RESTARTS = 10


@pytest.mark.parametrize("failures", [0, 1, 2])
async def test_ten_restarts_of_one_request(stage: Stage, failures: int) -> None:
    gates: list[Gate] = []

    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.index < RESTARTS:
            gates.append(Gate())
            return steps(Text(f"try {request.index}"), At(gates[-1]))
        if request.index < RESTARTS + failures:
            return fail("overloaded", kind="retryable")
        return say("at last")

    policy = RetryPolicy(max_retries=1, base_delay_ms=10)
    stage.script(answer)
    await stage.open(retry=policy)
    operation = await stage.accept()
    for number in range(RESTARTS):
        driving = stage.drive(operation, wait=True)
        while len(gates) <= number:
            await settle()
        await gates[number].reached()
        await settle()
        await stage.harness.close(BACKGROUND)
        await asyncio.gather(driving, return_exceptions=True)
        await stage.reopen(retry=policy)
    settled = ok(await stage.drive(operation, wait=True))
    # One retry is allowed: two provider failures are one too many, ten restarts are none.
    assert settled.outcome.kind == ("completed" if failures < 2 else "failed")
    messages = [getattr(entry, "message", None) for entry in await branch(stage.memory)]
    errors = [
        message
        for message in messages
        if isinstance(message, AssistantMessage) and message.stop_reason == "error"
    ]
    assert len(errors) == RESTARTS + failures
    assert await invariant_problems(stage.memory, set()) == []
