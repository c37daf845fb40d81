"""Cancellation against everything that it can meet: settlement, staging, publication, follow-ups (§4.6, §9.2)."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import BACKGROUND, Context
from harness.messages import AgentToolResult, text_result
from harness.models.script import (
    At,
    Gate,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    call,
    fail,
    say,
    steps,
)
from harness.operation.results import DriveSettled
from harness.runtime.drive import DriveOptions
from harness.runtime.hooks import BeforeRunEnd
from harness.runtime.requests import CompactionRequest
from harness.settings import CompactionSettings
from harness.testing.judging import branch, canonical, canonical_entry, leftovers
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, caller, ok, settle

MARKER = "(cancelling)"


async def texts(stage: Stage) -> list[object]:
    """The lane's entries in comparable form."""
    return [canonical_entry(entry) for entry in await branch(stage.memory)]


async def outcome(driving: asyncio.Task[object]) -> str:
    settled = ok(await driving)  # type: ignore[arg-type]
    assert isinstance(settled, DriveSettled)
    return settled.outcome.kind


async def test_marker_before_settlement_normalizes_the_response(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("said"), At(gate))])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    await settle()
    marker = stage.gated.park(MARKER)
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await marker.reached()
    gate.open()  # the response is complete while the marker is on its way
    await settle()
    marker.release()
    assert ok(await aborting).newly_requested
    assert await outcome(driving) == "aborted"
    assert (await texts(stage))[1] == ("assistant", "dropped", "aborted", (("text", "said"),))


async def test_settlement_before_the_marker_keeps_its_stop_reason(stage: Stage) -> None:
    stage.script([say("said")])
    await stage.open()
    operation = await stage.accept()
    settlement = stage.gated.park("entry assistant")
    driving = stage.drive(operation)
    await settlement.reached()
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    settlement.release()
    ok(await aborting)
    assert await outcome(driving) == "aborted"
    assert (await texts(stage))[1] == ("assistant", "stop", (("text", "said"),))


async def test_the_end_before_the_marker_leaves_nothing_to_abort(stage: Stage) -> None:
    stage.script([say("said")])
    await stage.open()
    operation = await stage.accept()
    terminal = stage.gated.park("set pi.lane.lastResult")
    driving = stage.drive(operation)
    await terminal.reached()
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    terminal.release()
    assert type((await aborting).error).__name__ == "OperationMismatch"  # type: ignore[union-attr]
    assert await outcome(driving) == "completed"


@pytest.mark.parametrize("first", ["abort", "outcome"])
async def test_abort_vs_staging_of_a_started_tool(stage: Stage, first: str) -> None:
    gate = Gate()

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await gate.pass_through()
        return text_result("real", terminate=True)

    stage.tool("t", work).script([call("t"), say("never")])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    if first == "abort":
        ok(await stage.harness.request_abort(operation, BACKGROUND))
        gate.open()
    else:
        staged = stage.gated.park("tools [ready]", durable=True)
        gate.open()
        await staged.reached()
        aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
        await settle()
        staged.release()
        ok(await aborting)
    assert await outcome(driving) == "aborted"
    result = (await texts(stage))[2]
    assert isinstance(result, tuple)
    assert result[:5] == ("toolResult", "call_0_0", "t", (("text", "real"),), False)
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("first", ["abort", "follow-up"])
async def test_abort_vs_the_follow_up_of_before_run_end(stage: Stage, first: str) -> None:
    gate = Gate()

    async def more(event: BeforeRunEnd, context: Context) -> str | None:
        await gate.pass_through()
        return "more"

    stage.script([say("one"), say("two")])
    await stage.open()
    remove = stage.harness.hooks.on("before_run_end", more)
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    remove()
    if first == "abort":
        ok(await stage.harness.request_abort(operation, BACKGROUND))
        gate.open()
        assert await outcome(driving) == "aborted"
        assert ("user", "more") not in await texts(stage), "the stale hook result is dropped"
        return
    placed = stage.gated.park("entry user", durable=True)
    gate.open()
    await placed.reached()
    placed.release()
    assert await outcome(driving) == "completed"
    assert (await texts(stage))[2:] == [
        ("user", "more"),
        ("assistant", "stop", (("text", "two"),)),
    ]


def summarizing(gate: Gate):  # a script
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return steps(Text("summary"), At(gate))
        return say("noted " * 20)

    return answer


@pytest.mark.parametrize("first", ["abort", "publication"])
async def test_abort_vs_structural_commit(stage: Stage, first: str) -> None:
    gate = Gate()
    stage.script(summarizing(gate))
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=1))
    await stage.prompt("a")
    await stage.prompt("b")
    admitted = ok(await stage.harness.accept(CompactionRequest(), BACKGROUND))
    driving = stage.drive(admitted.operation_id)
    await gate.reached()
    if first == "abort":
        ok(await stage.harness.request_abort(admitted.operation_id, BACKGROUND))
        gate.open()
        assert await outcome(driving) == "aborted"
        assert not [line for line in await texts(stage) if line[0] == "compaction"]  # type: ignore[index]
    else:
        published = stage.gated.park("entry compaction")
        gate.open()
        await published.reached()
        aborting = asyncio.ensure_future(
            stage.harness.request_abort(admitted.operation_id, BACKGROUND)
        )
        await settle()
        published.release()
        await aborting
        assert await outcome(driving) == "completed"
        assert [line for line in await texts(stage) if line[0] == "compaction"]  # type: ignore[index]
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("first", ["abort", "write"])
async def test_a_deferred_write_survives_an_abort_either_way(stage: Stage, first: str) -> None:
    gate = Gate()
    stage.script([steps(Text("begun"), At(gate))])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    await settle()
    if first == "write":
        await stage.harness.tree.append_custom_entry("note", {"n": 1}, BACKGROUND)
        ok(await stage.harness.request_abort(operation, BACKGROUND))
    else:
        marker = stage.gated.park(MARKER)
        aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
        await marker.reached()
        writing = asyncio.ensure_future(
            stage.harness.tree.append_custom_entry("note", {"n": 1}, BACKGROUND)
        )
        await settle()
        marker.release()
        ok(await aborting)
        await writing
    assert await outcome(driving) == "aborted"
    assert (await texts(stage))[-1] == ("custom", "note", "{'n': 1}")
    assert await leftovers(stage.memory, set()) == []


async def test_repeated_aborts_report_the_same_drained_input(stage: Stage) -> None:
    gate = Gate()
    hold = Gate()

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await gate.pass_through()
        await hold.pass_through()
        return text_result("x")

    stage.tool("t", work).script([call("t")])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    ok(await stage.harness.steer("s", BACKGROUND))
    ok(await stage.harness.follow_up("f", BACKGROUND))
    first = ok(await stage.harness.request_abort(operation, BACKGROUND))
    second = ok(await stage.harness.request_abort(operation, BACKGROUND))
    assert first.newly_requested
    assert not second.newly_requested
    assert first.steer == second.steer
    assert first.follow_up == second.follow_up
    assert [canonical(m) for m in (*first.steer, *first.follow_up)] == [
        ("user", "s"),
        ("user", "f"),
    ]
    gate.open()
    hold.open()
    assert await outcome(driving) == "aborted"
    assert await leftovers(stage.memory, set()) == []


async def test_steer_under_cancellation_finds_no_active_run(stage: Stage) -> None:
    stage.script([])
    await stage.open()
    operation = await stage.accept()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    rejected = await stage.harness.steer("too late", BACKGROUND)
    assert type(rejected.error).__name__ == "NoActiveRun"  # type: ignore[union-attr]


async def test_the_marker_wakes_a_retry_wait(still: Stage) -> None:
    still.script([fail("overloaded", kind="retryable"), say("never")])
    await still.open()
    operation = await still.accept()
    driving = still.drive(operation, wait=True)
    await settle()
    assert still.clock.sleeping == 1
    ok(await still.harness.request_abort(operation, BACKGROUND))
    assert await outcome(driving) == "aborted"
    assert still.clock.sleeping == 0


async def test_closing_while_the_marker_is_on_its_way_ends_both_callers(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("begun"), At(gate))])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    await settle()
    marker = stage.gated.park(MARKER)
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await marker.reached()
    gate.open()
    await settle()  # the pass has its response and waits for the marker
    closing = asyncio.ensure_future(stage.harness.close(BACKGROUND))
    await settle()
    marker.release()
    await closing
    await aborting  # admitted before the seal: it is durable
    (failure,) = await asyncio.gather(driving, return_exceptions=True)
    assert type(failure).__name__ == "HarnessClosed"
    await stage.reopen()
    assert (await stage.restored()).operation.cancelling  # type: ignore[union-attr]
    assert await outcome(stage.drive(operation)) == "aborted"


async def test_a_pass_installed_after_the_call_hears_the_signal_too(still: Stage) -> None:
    """Abort is called while pass A lives; when its marker lands, pass B waits for a retry."""
    still.script([fail("overloaded", kind="retryable"), say("never")])
    await still.open()
    operation = await still.accept()
    controller, context = caller()
    options = DriveOptions(operation, wait_for_retry=True)
    old = asyncio.ensure_future(still.harness.drive(options, context))
    await settle()
    assert still.clock.sleeping == 1
    busy = still.gated.park("set pi.session.name")
    naming = asyncio.ensure_future(still.harness.tree.set_name("n", BACKGROUND))
    await busy.reached()
    new = still.drive(operation, wait=True)
    await settle()
    marker = still.gated.park(MARKER)
    aborting = asyncio.ensure_future(still.harness.request_abort(operation, BACKGROUND))
    await settle()
    controller.abort()  # A goes; B is installed as soon as the line moves on
    busy.release()
    await naming
    await marker.reached()
    await settle()
    assert still.clock.sleeping == 1, "B waits for its retry"
    marker.release()
    ok(await aborting)
    await asyncio.gather(old, return_exceptions=True)
    assert await asyncio.wait_for(outcome(new), 5) == "aborted"
