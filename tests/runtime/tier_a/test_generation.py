"""Starting, checkpoints and assistant generation, each made durable and driven (§3.6, §3.7, §3.12, §4.5)."""

from __future__ import annotations

import pytest

from harness.context import BACKGROUND, Context
from harness.errors import HarnessFault
from harness.frames import (
    AssistantMessageFrame,
    StartFrame,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCallDelta,
    ToolCallStart,
)
from harness.messages import TextContent
from harness.models.script import Settle, say, steps
from harness.operation import values
from harness.operation.durable import OperationError
from harness.operation.payloads import PendingCustom
from harness.operation.results import DriveWaitingRetry
from harness.operation.state import (
    EMPTY_INBOX,
    AssistantPhase,
    CheckpointPhase,
    ConfigurationProvenance,
    FailureDrainPhase,
    GenerationPending,
    GenerationReady,
    GenerationRetryWait,
    Inbox,
    MayFinish,
    NeedAssistant,
    StartingPhase,
)
from harness.runtime.hooks import BeforeRun
from harness.storage.writes import set_value
from harness.testing.judging import branch, canonical_entry, leftovers
from tests.runtime.stage import Stage, ok
from tests.runtime.tier_a.building import Built
from tests.runtime.tier_b.telling import told

NEED = NeedAssistant(overflow_recovery_used=False)
GENERATED = [
    "TX set pi.op.state assistant ready 1",
    "TX set pi.op.state assistant pending 1",
]


async def texts(stage: Stage) -> list[object]:
    return [canonical_entry(entry) for entry in await branch(stage.memory)]


def commits(stage: Stage) -> list[str]:
    """The commits without frames."""
    return [line for line in told(stage) if line.startswith("TX")]


async def test_starting_applies_the_hook_output_once(stage: Stage) -> None:
    built = Built(stage)
    stage.script([say("x")])
    operation = await built.durable(built.run(StartingPhase()))
    calls: list[str] = []

    def inject(event: BeforeRun, context: Context) -> tuple[object, ...]:
        calls.append("before_run")
        return (built.user("injected"),)

    stage.harness.hooks.on("before_run", inject)
    consumed = stage.gated.park("entry user", durable=True)
    driving = stage.drive(operation)
    await consumed.reached()
    consumed.release()
    ok(await driving)
    assert calls == ["before_run"]
    assert commits(stage)[0] == (
        "TX entry user; set pi.lane.leaf; set pi.op.state checkpoint need_assistant"
    )
    assert await texts(stage) == [
        ("user", "go"),
        ("user", "injected"),
        ("assistant", "stop", (("text", "x"),)),
    ]


async def test_a_checkpoint_that_owes_a_turn_generates(stage: Stage) -> None:
    built = Built(stage)
    stage.script([say("x")])
    phase = CheckpointPhase(continuation=NEED, trigger_entry_id=built.prompt)
    ok(await stage.drive(await built.durable(built.run(phase))))
    assert commits(stage)[:2] == GENERATED


async def test_a_checkpoint_that_may_finish_ends_the_run(stage: Stage) -> None:
    built = Built(stage)
    answer = built.assistant(TextContent(text="x"))
    stage.script([])
    phase = CheckpointPhase(
        continuation=MayFinish(include_final_assistant=True), trigger_entry_id=answer
    )
    settled = ok(await stage.drive(await built.durable(built.run(phase, latest=answer))))
    assert len(commits(stage)) == 1
    assert settled.outcome.final_entry_id == answer


async def test_a_skipped_inbox_generates_before_it_takes_the_next_item(stage: Stage) -> None:
    built = Built(stage)
    queued = built.pending(built.user("queued"))
    stage.script([say("x"), say("y")])
    phase = CheckpointPhase(continuation=NEED, trigger_entry_id=built.prompt, skip_inbox_once=True)
    inbox = Inbox(steer=(queued,), follow_up=(), writes=())
    ok(await stage.drive(await built.durable(built.run(phase, inbox=inbox))))
    assert commits(stage)[:2] == GENERATED
    assert [line[0] for line in await texts(stage)] == ["user", "assistant", "user", "assistant"]  # type: ignore[index]


async def test_the_inbox_is_drained_in_its_order(stage: Stage) -> None:
    built = Built(stage)
    write, steer = built.pending(built.user("write")), built.pending(built.user("steer"))
    follow = built.pending(built.user("follow"))
    stage.script([say("x"), say("y"), say("z")])
    phase = CheckpointPhase(continuation=NEED, trigger_entry_id=built.prompt)
    inbox = Inbox(steer=(steer,), follow_up=(follow,), writes=(write,))
    ok(await stage.drive(await built.durable(built.run(phase, inbox=inbox))))
    assert [line for line in await texts(stage) if line[0] == "user"] == [  # type: ignore[index]
        ("user", "go"),
        ("user", "write"),
        ("user", "steer"),
        ("user", "follow"),
    ]


async def test_an_unprojected_custom_write_preserves_the_checkpoint(stage: Stage) -> None:
    built = Built(stage)
    made = built.new_id()
    built.writes.append(
        set_value(values.pending_entry(made), PendingCustom(custom_type="note", payload=1))
    )
    stage.script([say("x")])
    phase = CheckpointPhase(
        continuation=NeedAssistant(overflow_recovery_used=True), trigger_entry_id=built.prompt
    )
    inbox = Inbox(steer=(), follow_up=(), writes=(made,))
    operation = await built.durable(built.run(phase, inbox=inbox))
    ready = stage.gated.park("assistant ready")
    driving = stage.drive(operation)
    await ready.reached()
    state = stage.lane.projection.operation
    assert state is not None
    assert state.state == built.run(phase, inbox=EMPTY_INBOX)
    ready.release()
    ok(await driving)


async def test_a_ready_generation_sends_its_next_attempt(stage: Stage) -> None:
    built = Built(stage)
    stage.script([say("x")])
    generation = GenerationReady(context=built.context(), next_attempt=2)
    ok(await stage.drive(await built.durable(built.run(AssistantPhase(generation=generation)))))
    assert commits(stage)[0] == "TX set pi.op.state assistant pending 2"
    assert "retry_start 2" in told(stage)


def lost(built: Built, attempt: int, *frames: AssistantMessageFrame) -> GenerationPending:
    response = built.new_id()
    built.frames(response, frames)
    return GenerationPending(
        context=built.context(),
        attempt=attempt,
        response_entry_id=response,
        usage_id=built.new_id(),
        intended_output_limit=100,
        context_window=1_000,
    )


def partial(built: Built) -> list[AssistantMessageFrame]:
    return [
        StartFrame(partial=built.response(stop="pending")),
        TextStart(content_index=0),
        TextDelta(content_index=0, delta="so f"),
    ]


@pytest.mark.parametrize("attempt", [1, 2], ids=["below the cap", "at the cap"])
async def test_a_lost_request_without_frames(stage: Stage, attempt: int) -> None:
    built = Built(stage)
    stage.script([say("again")])
    pending = lost(built, attempt)
    operation = await built.durable(built.run(AssistantPhase(generation=pending)))
    settled = ok(await stage.drive(operation, wait=True))
    first = commits(stage)[0]
    assert first.startswith("TX entry assistant:error; usage; set pi.lane.leaf; drop ")
    entry = stage.memory.state.entries[pending.response_entry_id]
    assert entry.message.api == "unknown"  # type: ignore[union-attr]
    assert entry.message.content == ()  # type: ignore[union-attr]
    assert "interrupted" in entry.message.error_message  # type: ignore[union-attr]
    assert pending.usage_id in stage.memory.state.usage
    assert settled.outcome.kind == ("completed" if attempt == 1 else "failed")
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("attempt", [1, 2], ids=["below the cap", "at the cap"])
async def test_a_lost_request_with_output_spends_no_retry(stage: Stage, attempt: int) -> None:
    """Design §6: an interrupted attempt that made progress is not a provider failure."""
    built = Built(stage)
    stage.script([say("again")])
    pending = lost(built, attempt, *partial(built))
    operation = await built.durable(built.run(AssistantPhase(generation=pending)))
    settled = ok(await stage.drive(operation, wait=True))
    assert commits(stage)[0].endswith(f"assistant retry_wait {attempt}")
    assert settled.outcome.kind == "completed"
    assert (await texts(stage))[1] == ("assistant", "dropped", "error", (("text", "so f"),))


async def test_an_authoritative_end_frame_wins_over_its_deltas(stage: Stage) -> None:
    built = Built(stage)
    stage.script([say("again")])
    frames = [*partial(built), TextEnd(content_index=0, content=TextContent(text="corrected"))]
    pending = lost(built, 1, *frames)
    operation = await built.durable(built.run(AssistantPhase(generation=pending)))
    ok(await stage.drive(operation, wait=True))
    assert (await texts(stage))[1] == ("assistant", "dropped", "error", (("text", "corrected"),))


async def test_partial_calls_of_a_lost_request_never_run(stage: Stage) -> None:
    async def work(request: object) -> object:
        raise AssertionError("must not run")

    built = Built(stage, tools=("t",))
    stage.tool("t", work).script([say("again")])  # type: ignore[arg-type]
    pending = lost(
        built,
        1,
        StartFrame(partial=built.response(stop="pending")),
        ToolCallStart(content_index=0, id="c0", name="t"),
        ToolCallDelta(content_index=0, delta="{}"),
    )
    operation = await built.durable(built.run(AssistantPhase(generation=pending)))
    ran: list[str] = []
    stage.harness.hooks.on("after_response", lambda event, context: ran.append("ran"))
    ok(await stage.drive(operation, wait=True))
    assert "tool t" not in stage.journal
    assert len(ran) == 1, "only the second, real response is transformed"


async def test_a_retry_wait_before_its_time(still: Stage) -> None:
    built = Built(still)
    still.script([say("x")])
    due = built.now() + 5_000
    wait = GenerationRetryWait(
        context=built.context(), next_attempt=2, not_before=due, error_message="overloaded"
    )
    operation = await built.durable(built.run(AssistantPhase(generation=wait)))
    waiting = ok(await still.drive(operation))
    assert isinstance(waiting, DriveWaitingRetry)
    assert waiting.not_before == due
    assert still.clock.sleeping == 0
    assert commits(still) == []
    still.clock.advance(5)
    ok(await still.drive(operation))
    assert commits(still)[0] == "TX set pi.op.state assistant ready 2"


async def test_a_retry_wait_is_waited_for_when_asked(stage: Stage) -> None:
    built = Built(stage)
    stage.script([say("x")])
    due = built.now() + 5_000
    wait = GenerationRetryWait(
        context=built.context(), next_attempt=2, not_before=due, error_message="overloaded"
    )
    operation = await built.durable(built.run(AssistantPhase(generation=wait)))
    ok(await stage.drive(operation, wait=True))
    assert stage.clock.now_ms() >= due


def draining() -> FailureDrainPhase:
    return FailureDrainPhase(
        error=OperationError(code="model_unavailable", message="gone"),
        provenance=ConfigurationProvenance(),
    )


async def test_a_failure_without_input_fails(stage: Stage) -> None:
    built = Built(stage)
    stage.script([])
    operation = await built.durable(built.run(draining()))
    ran: list[str] = []
    stage.harness.hooks.on("before_run_end", lambda event, context: ran.append("ran"))
    settled = ok(await stage.drive(operation))
    assert settled.outcome.kind == "failed"
    assert settled.outcome.error.code == "model_unavailable"
    assert ran == []


@pytest.mark.parametrize("queue", ["steer", "follow_up", "writes"])
async def test_a_failure_is_rescued_by_input(stage: Stage, queue: str) -> None:
    built = Built(stage)
    queued = dict.fromkeys(("steer", "follow_up", "writes"), ())
    inbox = Inbox(**{**queued, queue: (built.pending(built.user("on you go")),)})
    stage.script([say("saved")])
    operation = await built.durable(built.run(draining(), inbox=inbox))
    assert ok(await stage.drive(operation)).outcome.kind == "completed"


async def test_a_failure_is_not_rescued_by_an_unprojected_write(stage: Stage) -> None:
    built = Built(stage)
    made = built.new_id()
    built.writes.append(
        set_value(values.pending_entry(made), PendingCustom(custom_type="note", payload=1))
    )
    inbox = Inbox(steer=(), follow_up=(), writes=(made,))
    stage.script([])
    operation = await built.durable(built.run(draining(), inbox=inbox))
    assert ok(await stage.drive(operation)).outcome.kind == "failed"
    assert (await texts(stage))[-1] == ("custom", "note", "1")


async def test_an_aborted_response_under_running_control_is_a_defect(stage: Stage) -> None:
    built = Built(stage)
    stage.script([steps(Settle(built.response(stop="aborted")))])
    phase = CheckpointPhase(continuation=NEED, trigger_entry_id=built.prompt)
    operation = await built.durable(built.run(phase))
    with pytest.raises(HarnessFault, match="aborted"):
        await stage.drive(operation)
    assert stage.harness.faulted is not None
    assert not [line for line in commits(stage) if "entry assistant" in line]
    # Another process may try again: nothing of it was written.
    await stage.harness.close(BACKGROUND)
