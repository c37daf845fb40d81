"""Late writes of a pass: checkpoints, memos and frames against settlement and finalization (§3.7, §3.8, §4.9)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.context import BACKGROUND
from harness.messages import AgentToolResult, text_result
from harness.models.script import At, Gate, Text, call, say, steps
from harness.operation.durable import OperationError
from harness.operation.results import DriveSettled
from harness.runtime.accept import Admission
from harness.runtime.finalize import finalize_externally
from harness.runtime.procedures.invocation import InvocationExpired
from harness.runtime.requests import PromptRequest
from harness.testing.judging import leftovers, read_wreck
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, err, ok, settle

ENDED = OperationError(code="administrative", message="ended by an administrator")
CHECKPOINT = "set pi.pending.tool_output"
MEMO = "set pi.op.tool_memo"
FRAME = "append pi.pending.assistant_frame"


def count(stage: Stage, part: str) -> int:
    """How many commits have such a write."""
    return sum(part in line for line in stage.journal if line.startswith("TX"))


async def finalized(stage: Stage, operation: str) -> DriveSettled:
    return ok(await finalize_externally(stage.lane, operation, ENDED, BACKGROUND))


async def test_every_accepted_checkpoint_is_stored_before_the_outcome_and_no_late_one(
    stage: Stage,
) -> None:
    late: list[ToolCallRequest[None]] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        late.append(request)
        for number in range(5):
            request.on_update(text_result(str(number)), checkpoint=True)
        return text_result("done")

    stage.tool("t", work).script([call("t"), say("x")])
    await stage.open()
    parked = stage.gated.park("set pi.pending.entry toolResult")
    driving = stage.drive(await stage.accept())
    await parked.reached()
    assert count(stage, CHECKPOINT) == 5, "none is dropped or merged"
    late[0].on_update(text_result("too late"), checkpoint=True)
    with pytest.raises(InvocationExpired):
        await late[0].invocation.set_memo("too late", 1)
    parked.release()
    ok(await driving)
    assert count(stage, CHECKPOINT) == 5
    assert count(stage, MEMO) == 0


async def test_a_crash_between_the_last_frame_and_the_settlement_keeps_the_prefix(
    stage: Stage,
) -> None:
    stage.script([say("a complete answer"), say("again")])
    await stage.open()
    operation = await stage.accept()
    settlement = stage.gated.park("entry assistant")
    driving = stage.drive(operation)
    await settlement.reached()
    wreck = await read_wreck(stage.memory)
    assert wreck is not None
    assert wreck.partial is not None
    settlement.fail(OSError("gone"))
    (failure,) = await asyncio.gather(driving, return_exceptions=True)
    assert type(failure).__name__ == "HarnessFault"
    await stage.reopen()
    ok(await stage.drive(operation, wait=True))
    entry = stage.memory.state.entries[str(wreck.response_id)]
    message: Any = entry.message  # type: ignore[union-attr]
    # A complete-looking draft is not a settled response.
    assert message.stop_reason == "error"
    assert message.content[0].text == "a complete answer"
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("first", ["append", "finalization"])
async def test_frame_append_vs_finalization(stage: Stage, first: str) -> None:
    gate = Gate()
    stage.script([steps(Text("a b", deltas=2), At(gate), Text("c"))])
    await stage.open()
    operation = await stage.accept()
    if first == "append":
        frame = stage.gated.park(f"{FRAME} text_delta")
        driving = stage.drive(operation)
        await frame.reached()
        finalizing = asyncio.ensure_future(finalized(stage, operation))
        await settle()
        frame.release()
        await finalizing
    else:
        driving = stage.drive(operation)
        await gate.reached()
        await settle()
        before = count(stage, FRAME)
        terminal = stage.gated.park("set pi.lane.lastResult")
        finalizing = asyncio.ensure_future(finalized(stage, operation))
        await terminal.reached()
        gate.open()  # more frames are queued behind the finalization
        await settle()
        terminal.release()
        await finalizing
        await settle()
        assert count(stage, FRAME) == before
    assert ok(await driving).outcome.error == ENDED
    assert stage.memory.state.lists == {}
    assert await leftovers(stage.memory, set()) == []
    assert stage.journal.count("run_end failed") == 1


@pytest.mark.parametrize("what", ["memo", "checkpoint"])
@pytest.mark.parametrize("first", ["write", "finalization"])
async def test_memo_and_checkpoint_vs_finalization(stage: Stage, what: str, first: str) -> None:
    begin, end = Gate(), Gate()
    failures: list[str] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await begin.pass_through()
        try:
            if what == "memo":
                await request.invocation.set_memo("m", 1)
            else:
                request.on_update(text_result("half"), checkpoint=True)
        except Exception as error:  # noqa: BLE001  # what the tool is told is the point
            failures.append(type(error).__name__)
        await end.pass_through()
        return text_result("done")

    stage.tool("t", work).script([call("t")])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await begin.reached()
    written = MEMO if what == "memo" else CHECKPOINT
    if first == "write":
        write = stage.gated.park(written)
        begin.open()
        await write.reached()
        finalizing = asyncio.ensure_future(finalized(stage, operation))
        await settle()
        write.release()
        await finalizing
    else:
        terminal = stage.gated.park("set pi.lane.lastResult")
        finalizing = asyncio.ensure_future(finalized(stage, operation))
        await terminal.reached()
        begin.open()
        await settle()
        terminal.release()
        await finalizing
        await settle()
        assert count(stage, written) == 0
        assert failures == (["InvocationExpired"] if what == "memo" else [])
    end.open()
    assert ok(await driving).outcome.error == ENDED
    await settle()
    assert await leftovers(stage.memory, set()) == []
    assert "entry_added toolResult" not in stage.journal


async def test_finalization_settles_without_waiting_and_keeps_the_lane_until_both_ended(
    stage: Stage,
) -> None:
    gate = Gate()

    async def stubborn(request: ToolCallRequest[None]) -> AgentToolResult:
        await gate.pass_through()
        return text_result("late")

    stage.tool("t", stubborn).script([call("t"), say("other")])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    await finalized(stage, operation)
    # The waiters have the outcome while the detached tool still works.
    assert ok(await driving).outcome.error == ENDED
    installed = stage.lane.drive
    assert installed is not None
    assert not installed.pass_ended
    busy: Admission = await stage.harness.accept(PromptRequest(prompt="next"), BACKGROUND)
    assert type(err(busy)).__name__ == "LaneBusy"
    joined = ok(await stage.drive(operation))
    assert joined.outcome.error == ENDED
    before = len(stage.storage.raw)
    gate.open()
    await settle()
    assert stage.lane.drive is None
    assert len(stage.storage.raw) == before
    outcome: Any = await stage.prompt("next")
    assert outcome.kind == "completed"


async def test_joiners_wait_for_the_delivery_of_the_end(stage: Stage) -> None:
    gate, heard = Gate(), Gate()

    async def slow(event: object, context: object) -> None:
        await heard.pass_through()

    stage.script([steps(Text("a"), At(gate))])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    stage.harness.events.on("run_end", slow)
    finalizing = asyncio.ensure_future(finalized(stage, operation))
    await heard.reached()
    late = stage.drive(operation)
    gate.open()
    await settle()
    assert not driving.done()
    assert not late.done(), "nobody hydrates before the end was delivered"
    heard.open()
    await finalizing
    assert ok(await driving).outcome == ok(await late).outcome


async def test_finalization_without_a_pass_and_attachment(stage: Stage) -> None:
    stage.script([say("never")])
    await stage.open()
    operation = await stage.accept()
    before = await stage.harness.inspect_execution(BACKGROUND)
    assert before.current is not None
    await finalized(stage, operation)
    after = await stage.harness.inspect_execution(BACKGROUND)
    assert after.current is None
    assert after.last_result is not None
    assert after.last_result.operation_id == operation
    # A process that attaches afterwards sees an idle lane and the same result.
    await stage.reopen()
    settled = ok(await stage.drive(operation))
    assert settled.outcome.error == ENDED
    resumed = await stage.harness.resume(BACKGROUND)
    assert type(err(resumed)).__name__ == "NothingToResume"


async def test_at_most_one_terminal_transaction_commits(stage: Stage) -> None:
    stage.script([say("done")])
    await stage.open()
    operation = await stage.accept()
    terminal = stage.gated.park("set pi.lane.lastResult")
    driving = stage.drive(operation)
    await terminal.reached()
    finalizing = asyncio.ensure_future(
        finalize_externally(stage.lane, operation, ENDED, BACKGROUND)
    )
    await settle()
    terminal.release()
    assert type(err(await finalizing)).__name__ == "OperationMismatch"
    assert ok(await driving).outcome.kind == "completed"
    assert count(stage, "set pi.lane.lastResult") == 1
