"""Close is a controlled crash: what was admitted may finish, nothing else is written (§4.7, §4.8, §9.2)."""

from __future__ import annotations

import asyncio

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.errors import HarnessClosed, HarnessFault
from harness.messages import AgentToolResult, text_result
from harness.models.script import At, Gate, Text, call, fail, say, steps
from harness.operation.state import AssistantPhase, GenerationPending, Running, RunState
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.runtime.requests import PromptRequest
from harness.storage.memory import MemoryStorage
from harness.testing.gated import GatedStorage
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, err, ok, settle


async def state(stage: Stage) -> RunState:
    operation = (await stage.restored()).operation
    assert operation is not None
    assert isinstance(operation.state, RunState)
    return operation.state


async def test_settlement_after_the_seal_is_abandoned(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("begun"), At(gate)), say("again")])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    await settle()
    frames = len(stage.storage.raw)
    closing = asyncio.ensure_future(stage.harness.close(BACKGROUND))
    gate.open()
    await closing
    with pytest.raises(HarnessClosed):
        await driving
    assert len(stage.storage.raw) == frames, "neither a response nor a marker is written"
    await stage.reopen()
    phase = (await state(stage)).phase
    assert isinstance(phase, AssistantPhase)
    assert isinstance(phase.generation, GenerationPending)
    assert isinstance((await state(stage)).control, Running)
    assert ok(await stage.drive(operation, wait=True)).outcome.kind == "completed"


async def test_settlement_before_the_seal_is_kept_and_close_waits_for_it(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    operation = await stage.accept()
    settlement = stage.gated.park("entry assistant")
    driving = stage.drive(operation)
    await settlement.reached()
    closing = asyncio.ensure_future(stage.harness.close(BACKGROUND))
    await settle()
    assert not closing.done()
    settlement.release()
    await closing
    await asyncio.gather(driving, return_exceptions=True)
    await stage.reopen()
    assert stage.provider is not None
    assert ok(await stage.drive(operation)).outcome.kind == "completed"
    assert len(stage.provider.scripted.requests) == 1, "a settled response is never asked again"


async def test_close_vs_attachment(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    await stage.accept()
    await stage.harness.close(BACKGROUND)
    # Closed first: attachment rejects and no partial harness escapes.
    session = stage.session()
    session.seal()
    options = HarnessOptions(models=stage.registry, model=stage.model)
    stage.storage.inner = MemoryStorage(SystemClock(), stage.memory.state)
    await session.close(BACKGROUND)
    with pytest.raises(HarnessFault):
        await AgentHarness.create(session, options, BACKGROUND)
    # Attached first: complete, and fully usable.
    stage.storage.inner = MemoryStorage(SystemClock(), stage.memory.state)
    harness, inventory = await AgentHarness.create(stage.session(), options, BACKGROUND)
    assert len(inventory) == 1
    assert ok(await harness.resume(BACKGROUND)).kind == "completed"
    await harness.close(BACKGROUND)


async def test_everything_after_close_is_refused(stage: Stage) -> None:
    stage.script([])
    harness = await stage.open()
    waiting = asyncio.ensure_future(_idle(stage))
    await settle()
    await harness.close(BACKGROUND)
    await harness.close(BACKGROUND)
    assert (
        type(err(await harness.accept(PromptRequest(prompt="x"), BACKGROUND))).__name__ == "Closed"
    )
    assert type(err(await harness.steer("x", BACKGROUND))).__name__ == "Closed"
    assert type(err(await harness.next_run("x", BACKGROUND))).__name__ == "Closed"
    assert type(err(await harness.resume(BACKGROUND))).__name__ == "Closed"
    assert type(err(await harness.abort(BACKGROUND))).__name__ == "Closed"
    for surface in (
        harness.set_thinking_level("low", BACKGROUND),
        harness.wait_for_idle(BACKGROUND),
        harness.watch(BACKGROUND),
        harness.inspect_execution(BACKGROUND),
        harness.tree.set_name("x", BACKGROUND),
    ):
        with pytest.raises(HarnessClosed):
            await surface
    assert (await asyncio.gather(waiting, return_exceptions=True))[0] is None


async def _idle(stage: Stage) -> None:
    await stage.harness.wait_for_idle(BACKGROUND)


async def test_close_ends_a_retry_wait_without_a_write(still: Stage) -> None:
    still.script([fail("overloaded", kind="retryable"), say("x")])
    await still.open()
    operation = await still.accept()
    driving = still.drive(operation, wait=True)
    await settle()
    before = len(still.storage.raw)
    await still.harness.close(BACKGROUND)
    with pytest.raises(HarnessClosed):
        await driving
    assert len(still.storage.raw) == before
    assert still.clock.sleeping == 0


async def test_a_tool_that_ignores_its_signal_does_not_hold_close_up(stage: Stage) -> None:
    gate, stop = Gate(), asyncio.Event()

    async def stubborn(request: ToolCallRequest[None]) -> AgentToolResult:
        while not stop.is_set():
            try:
                await gate.pass_through()
                await stop.wait()
            except asyncio.CancelledError:
                continue
        request.on_update(text_result("late"), checkpoint=True)
        return text_result("late")

    stage.tool("t", stubborn).script([call("t"), say("x")])
    await stage.open()
    driving = stage.drive(await stage.accept())
    await gate.reached()
    before = len(stage.storage.raw)
    await asyncio.wait_for(stage.harness.close(BACKGROUND), 5)
    with pytest.raises(HarnessClosed):
        await driving
    stop.set()
    gate.open()
    await settle()
    assert len(stage.storage.raw) == before


async def test_a_failed_commit_faults_everything_at_once(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("begun"), At(gate))])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    await settle()
    idle = asyncio.ensure_future(stage.harness.wait_for_idle(BACKGROUND))
    await settle()
    parked = stage.gated.park("set pi.session.name")
    naming = asyncio.ensure_future(stage.harness.tree.set_name("n", BACKGROUND))
    await parked.reached()
    parked.fail(OSError("disk full"))
    for call_ in (naming, driving, idle):
        with pytest.raises(HarnessFault):
            await call_
    with pytest.raises(HarnessFault):
        await stage.harness.inspect_execution(BACKGROUND)
    with pytest.raises(HarnessFault):
        await stage.harness.accept(PromptRequest(prompt="x"), BACKGROUND)
    assert "fault" in stage.journal
    assert isinstance(stage.storage.inner, GatedStorage)
    # What was committed before is what a new process finds.
    await stage.harness.close(BACKGROUND)
    await stage.reopen()
    assert isinstance((await state(stage)).phase, AssistantPhase)


async def test_listeners_may_be_slow_while_closing(stage: Stage) -> None:
    heard = Gate()

    async def slow(event: object, context: object) -> None:
        await heard.pass_through()

    stage.script([say("x")])
    await stage.open()
    stage.harness.events.on("run_end", slow)
    driving = stage.drive(await stage.accept())
    await heard.reached()
    closing = asyncio.ensure_future(stage.harness.close(BACKGROUND))
    await settle()
    heard.open()
    await closing
    outcome = (await asyncio.gather(driving, return_exceptions=True))[0]
    assert isinstance(outcome, HarnessClosed) or ok(outcome).outcome.kind == "completed"  # type: ignore[arg-type]
