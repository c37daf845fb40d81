"""Acceptance, driving, joining and fencing by the expected id (§3.6, §4.1, §9.2)."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import BACKGROUND, Context
from harness.errors import DriveAbandoned, LaneBusy, OperationMismatch, OutcomeReplaced
from harness.messages import text_result
from harness.models.script import At, Gate, Text, call, fail, say, steps
from harness.operation.results import DriveSettled, DriveWaitingRetry, RunOutcome
from harness.runtime.accept import Admission
from harness.runtime.drive import DriveOptions
from harness.runtime.requests import OperationRequest, PromptRequest
from tests.runtime.stage import Stage, caller, err, ok, settle


async def test_prompt_vs_prompt(stage: Stage) -> None:
    stage.script([say("first"), say("second")])
    await stage.open()
    accepting = stage.gated.park("set pi.op.meta")
    first = asyncio.ensure_future(stage.harness.accept(PromptRequest(prompt="a"), BACKGROUND))
    await accepting.reached()
    second = asyncio.ensure_future(stage.harness.accept(PromptRequest(prompt="b"), BACKGROUND))
    await settle()
    assert not second.done(), "the loser waits for its turn on the line"
    accepting.release()
    admitted = ok(await first)
    busy = err(await second)
    assert isinstance(busy, LaneBusy)
    assert busy.operation_id == admitted.operation_id
    assert stage.journal.count("run_start") == 1


async def test_acceptance_lost_with_its_process_is_simply_repeated(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    operation = stage.environment.ids.next()
    request = PromptRequest(prompt="go", operation_id=operation)
    parked = stage.gated.park("set pi.op.meta")
    lost = asyncio.ensure_future(stage.harness.accept(request, BACKGROUND))
    await parked.reached()
    parked.fail(OSError("gone"))
    await asyncio.gather(lost, return_exceptions=True)
    await stage.reopen()
    execution = await stage.harness.inspect_execution(BACKGROUND)
    assert execution.current is None
    assert execution.last_result is None
    ok(await stage.harness.accept(request, BACKGROUND))
    settled = ok(await stage.drive(operation))
    assert settled.outcome.kind == "completed"


async def test_acceptance_that_survived_its_process_drives_without_unknown_effect(
    stage: Stage,
) -> None:
    stage.script([say("x")])
    await stage.open()
    operation = await stage.accept()
    await stage.reopen()
    stage.journal.clear()
    settled = ok(await stage.drive(operation))
    assert settled.outcome.kind == "completed"
    assert not [line for line in stage.journal if "(recovery)" in line or "error" in line]


async def test_drive_vs_drive(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(At(gate), Text("x"))])
    await stage.open()
    passes: list[str] = []
    stage.harness.hooks.on("before_drive", lambda event, context: passes.append(event.run_id))
    operation = await stage.accept()
    first = stage.drive(operation)
    await gate.reached()
    second = stage.drive(operation)
    await settle()
    gate.open()
    assert ok(await first) is ok(await second), "the second joined exactly that pass"
    assert passes == [operation]
    # Later calls get the settled outcome from the lane's last result.
    again = ok(await stage.drive(operation))
    assert again == ok(await first)


async def test_a_joiner_may_drive_on_where_the_pass_it_joined_stopped(still: Stage) -> None:
    gate = Gate()
    still.script([steps(At(gate), *fail("overloaded", kind="retryable").steps), say("x")])
    await still.open()
    operation = await still.accept()
    installed = still.drive(operation)
    await gate.reached()
    joined = still.drive(operation, wait=True)
    await settle()
    gate.open()
    waiting = ok(await joined)
    assert isinstance(waiting, DriveWaitingRetry)
    assert waiting == ok(await installed)
    patient = still.drive(operation, wait=True)
    await settle()
    still.clock.advance(10)
    assert isinstance(ok(await patient), DriveSettled)


async def test_stale_calls_for_a_leave_b_alone(stage: Stage) -> None:
    gate = Gate()
    stage.script([say("a"), steps(At(gate), Text("b"))])
    await stage.open()
    ok(await stage.harness.prompt("a", BACKGROUND))
    last = (await stage.harness.inspect_execution(BACKGROUND)).last_result
    assert last is not None
    stale = last.operation_id
    current = await stage.accept("b")
    driving = stage.drive(current)
    await gate.reached()
    await settle()
    before = len(stage.storage.raw)
    drive = err(await stage.drive(stale))
    abort = err(await stage.harness.request_abort(stale, BACKGROUND))
    for rejected in (drive, abort):
        assert isinstance(rejected, OperationMismatch)
        assert rejected.current_operation_id == current
        assert rejected.expected_operation_id == stale
    assert len(stage.storage.raw) == before
    gate.open()
    settled = ok(await driving)
    assert settled.outcome.kind == "completed"


async def test_an_unknown_id_starts_nothing(stage: Stage) -> None:
    stage.script([])
    await stage.open()
    unknown = stage.environment.ids.next()
    assert isinstance(err(await stage.drive(unknown)), OperationMismatch)
    assert stage.lane.drive is None


async def test_installer_cancellation_abandons_the_pass_for_its_joiners_too(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("begun"), At(gate)), say("again")])
    await stage.open()
    operation = await stage.accept()
    controller, context = caller()
    installer = asyncio.ensure_future(stage.harness.drive(DriveOptions(operation), context))
    await gate.reached()
    joiner = stage.drive(operation)
    await settle()
    controller.abort()
    for task in (installer, joiner):
        with pytest.raises(DriveAbandoned):
            await task
    assert stage.lane.drive is None
    state = stage.lane.projection.operation
    assert state is not None
    assert not state.cancelling, "a caller that goes away cancels nothing durably"
    settled = ok(await stage.drive(operation, wait=True))
    assert isinstance(settled, DriveSettled)
    assert isinstance(settled.outcome, RunOutcome)
    assert settled.outcome.kind == "completed"


async def test_a_joiner_that_goes_away_ends_only_its_own_observation(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(At(gate), Text("x"))])
    await stage.open()
    operation = await stage.accept()
    installer = stage.drive(operation)
    await gate.reached()
    controller, context = caller()
    joiner = asyncio.ensure_future(stage.harness.drive(DriveOptions(operation), context))
    await settle()
    controller.abort()
    (failure,) = await asyncio.gather(joiner, return_exceptions=True)
    assert type(failure).__name__ == "OperationCancelledByCaller"
    gate.open()
    assert ok(await installer).outcome.kind == "completed"


async def test_an_abandoned_pass_writes_nothing_more(stage: Stage) -> None:
    gate = Gate()

    async def stubborn(request: object) -> object:
        while True:
            try:
                await gate.pass_through()
                return text_result("late")
            except asyncio.CancelledError:
                continue

    stage.tool("t", stubborn).script([call("t"), say("x")])  # type: ignore[arg-type]
    await stage.open()
    operation = await stage.accept()
    controller, context = caller()
    installer = asyncio.ensure_future(stage.harness.drive(DriveOptions(operation), context))
    await gate.reached()
    controller.abort()
    await asyncio.gather(installer, return_exceptions=True)
    before = len(stage.storage.raw)
    gate.open()
    await settle()
    assert len(stage.storage.raw) == before
    # The next pass finds the call orphaned and says so.
    ok(await stage.drive(operation))
    assert "entry_added toolResult:error" in "\n".join(stage.journal)


async def test_attachment_vs_resume(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    operation = await stage.accept()
    await stage.harness.close(BACKGROUND)
    harness, inventory = await _attached(stage)
    assert [item.operation_id for item in inventory] == [operation]
    outcome = ok(await harness.resume(BACKGROUND))
    assert outcome.kind == "completed"
    # The inventory is stale now, and harmless.
    again = ok(await harness.drive(DriveOptions(inventory[0].operation_id), BACKGROUND))
    assert isinstance(again, DriveSettled)
    await harness.close(BACKGROUND)


async def _attached(stage: Stage):  # the pair that create returns
    from harness.runtime.core import HarnessOptions
    from harness.runtime.harness import AgentHarness
    from harness.storage.memory import MemoryStorage

    stage.storage.inner = MemoryStorage(stage.clock, stage.memory.state)  # type: ignore[arg-type]
    options = HarnessOptions(models=stage.registry, model=stage.model)
    return await AgentHarness.create(stage.session(), options, BACKGROUND)


async def test_the_outcome_belongs_to_the_pass_even_when_the_next_run_is_already_over(
    stage: Stage,
) -> None:
    """The end of A is still being delivered while B is accepted, driven and finished."""
    heard = Gate()
    stage.script([say("a"), say("b")])
    await stage.open(listen=False)

    async def slow(event: object, context: object) -> None:
        await heard.pass_through()

    remove = stage.harness.events.on("run_end", slow)
    first = await stage.accept("a")
    driving = stage.drive(first)
    await heard.reached()
    remove()
    second = stage.environment.ids.next()
    accepting = asyncio.ensure_future(
        stage.harness.accept(PromptRequest(prompt="b", operation_id=second), BACKGROUND)
    )
    await settle()
    other = stage.drive(second)
    await settle()
    heard.open()
    await accepting
    assert ok(await other).operation_id == second
    settled = ok(await driving)
    assert settled.operation_id == first
    assert settled.outcome.final_message.content[0].text == "a"


async def test_a_prompt_overtaken_before_it_drives_says_that_its_outcome_was_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.script([say("mine"), say("theirs")])
    await stage.open()
    lane = await stage.harness.lane("main", BACKGROUND)
    assert lane is not None
    accept = lane.accept
    accepted: list[str] = []

    async def overtaken(request: OperationRequest, context: Context) -> Admission:
        admitted = await accept(request, context)
        # Between this caller's acceptance and its drive somebody else does both, twice.
        accepted.append(ok(admitted).operation_id)
        ok(await stage.drive(accepted[0]))
        later = ok(await accept(PromptRequest(prompt="another"), context))
        ok(await stage.drive(later.operation_id))
        return admitted

    monkeypatch.setattr(lane, "accept", overtaken)
    with pytest.raises(OutcomeReplaced) as replaced:
        await lane.prompt("mine", BACKGROUND)
    assert [replaced.value.operation_id] == accepted
    assert stage.harness.faulted is None
