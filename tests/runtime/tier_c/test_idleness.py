"""Waiting for an idle lane, and owning it for the length of a callback (§5.1)."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import BACKGROUND, Context
from harness.errors import HarnessClosed, OperationCancelledByCaller
from harness.models.script import At, Gate, Text, say, steps
from harness.runtime.requests import PromptRequest
from tests.runtime.stage import Stage, caller, err, settle


async def busy(stage: Stage, gate: Gate) -> asyncio.Task[object]:
    """A lane whose run stands at a gate."""
    stage.script([steps(At(gate), Text("x")), say("y"), say("z")])
    await stage.open()
    driving = stage.drive(await stage.accept())
    await gate.reached()
    return driving


async def test_all_waiters_wake_together_when_the_operation_is_over(stage: Stage) -> None:
    gate = Gate()
    driving = await busy(stage, gate)
    waiting = [asyncio.ensure_future(stage.harness.wait_for_idle(BACKGROUND)) for _ in range(3)]
    await settle()
    assert not any(task.done() for task in waiting)
    gate.open()
    await driving
    await asyncio.gather(*waiting)
    await stage.harness.wait_for_idle(BACKGROUND)


async def test_a_waiter_that_goes_away_harms_nobody(stage: Stage) -> None:
    gate = Gate()
    driving = await busy(stage, gate)
    controller, context = caller()
    leaving = asyncio.ensure_future(stage.harness.wait_for_idle(context))
    staying = asyncio.ensure_future(stage.harness.wait_for_idle(BACKGROUND))
    await settle()
    controller.abort()
    with pytest.raises(OperationCancelledByCaller):
        await leaving
    gate.open()
    await driving
    await staying


async def test_nothing_is_written_while_a_callback_owns_the_lane(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    gate = Gate()

    async def callback(context: Context) -> None:
        # Reading is allowed, and sees a lane that stays as it is.
        before = await stage.harness.inspect_execution(context)
        await gate.pass_through()
        assert await stage.harness.inspect_execution(context) == before

    owning = asyncio.ensure_future(stage.harness.run_when_idle(callback, BACKGROUND))
    await gate.reached()
    before = len(stage.storage.raw)
    writing: list[asyncio.Task[object]] = [
        asyncio.ensure_future(stage.harness.accept(PromptRequest(prompt="go"), BACKGROUND)),
        asyncio.ensure_future(stage.harness.next_run("later", BACKGROUND)),
        asyncio.ensure_future(stage.harness.tree.append_custom_entry("note", None, BACKGROUND)),
        asyncio.ensure_future(stage.harness.set_thinking_level("low", BACKGROUND)),
    ]
    idle = asyncio.ensure_future(stage.harness.wait_for_idle(BACKGROUND))
    await settle()
    assert len(stage.storage.raw) == before
    assert not idle.done(), "a lane that a callback owns is not idle"
    gate.open()
    await owning
    await asyncio.gather(*writing)
    assert len(stage.storage.raw) == before + len(writing)
    assert not idle.done() or stage.lane.projection.operation is not None


async def test_callbacks_take_turns_and_wait_for_the_operation(stage: Stage) -> None:
    gate = Gate()
    order: list[str] = []

    def callback(name: str):  # a callback
        async def own(context: Context) -> None:
            order.append(f"{name} begins")
            await settle()
            order.append(f"{name} ends")

        return own

    driving = await busy(stage, gate)
    owning = [
        asyncio.ensure_future(stage.harness.run_when_idle(callback(name), BACKGROUND))
        for name in ("a", "b")
    ]
    await settle()
    assert order == []
    gate.open()
    await driving
    await asyncio.gather(*owning)
    assert order == ["a begins", "a ends", "b begins", "b ends"]


async def test_a_failing_callback_frees_the_lane_and_its_error_arrives(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()

    def callback(context: Context) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await stage.harness.run_when_idle(callback, BACKGROUND)
    assert (await stage.prompt()).kind == "completed"


async def test_close_waits_for_a_callback_that_runs_and_rejects_one_that_does_not(
    stage: Stage,
) -> None:
    stage.script([say("x")])
    await stage.open()
    gate = Gate()

    async def callback(context: Context) -> None:
        await gate.pass_through()

    owning = asyncio.ensure_future(stage.harness.run_when_idle(callback, BACKGROUND))
    await gate.reached()
    waiting = asyncio.ensure_future(stage.harness.run_when_idle(callback, BACKGROUND))
    accepting = asyncio.ensure_future(stage.harness.accept(PromptRequest(prompt="go"), BACKGROUND))
    await settle()
    closing = asyncio.ensure_future(stage.harness.close(BACKGROUND))
    await settle()
    assert not closing.done()
    with pytest.raises(HarnessClosed):
        await waiting
    gate.open()
    await closing
    await owning
    assert type(err(await accepting)).__name__ == "Closed"
