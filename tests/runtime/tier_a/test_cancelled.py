"""Cancellation found in every state of a run: settled, reconciled, nothing started (§4.6)."""

from __future__ import annotations

import pytest

from harness.context import BACKGROUND
from harness.frames import StartFrame, TextDelta, TextStart
from harness.messages import AgentToolResult, text_result
from harness.operation import values
from harness.operation.durable import OperationError
from harness.operation.payloads import PendingCustom
from harness.operation.state import (
    AssistantPhase,
    CancelRequested,
    CheckpointPhase,
    ConfigurationProvenance,
    FailureDrainPhase,
    GenerationPending,
    GenerationReady,
    GenerationRetryWait,
    Inbox,
    MayFinish,
    NeedAssistant,
    RunPhase,
    StartingPhase,
)
from harness.storage.writes import set_value
from harness.testing.judging import branch, canonical_entry, leftovers
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok
from tests.runtime.tier_a.building import CANCELLED, Built
from tests.runtime.tier_a.test_batches import Batched

NEED = NeedAssistant(overflow_recovery_used=False)


def pending(built: Built) -> GenerationPending:
    response = built.new_id()
    built.frames(
        response,
        [
            StartFrame(partial=built.response(stop="pending")),
            TextStart(content_index=0),
            TextDelta(content_index=0, delta="part"),
        ],
    )
    return GenerationPending(
        context=built.context(),
        attempt=1,
        response_entry_id=response,
        usage_id=built.new_id(),
        intended_output_limit=100,
        context_window=1_000,
    )


def phase(built: Built, name: str) -> RunPhase:
    match name:
        case "starting":
            return StartingPhase()
        case "checkpoint":
            return CheckpointPhase(continuation=NEED, trigger_entry_id=built.prompt)
        case "may finish":
            finish = MayFinish(include_final_assistant=False)
            return CheckpointPhase(continuation=finish, trigger_entry_id=built.prompt)
        case "ready":
            ready = GenerationReady(context=built.context(), next_attempt=1)
            return AssistantPhase(generation=ready)
        case "pending":
            return AssistantPhase(generation=pending(built))
        case "retry wait":
            wait = GenerationRetryWait(
                context=built.context(),
                next_attempt=2,
                not_before=built.now() + 10**9,
                error_message="overloaded",
            )
            return AssistantPhase(generation=wait)
        case _:
            return FailureDrainPhase(
                error=OperationError(code="x", message="x"), provenance=ConfigurationProvenance()
            )


PHASES = ("starting", "checkpoint", "may finish", "ready", "pending", "retry wait", "failure")


@pytest.mark.parametrize("name", PHASES)
async def test_every_phase_ends_aborted_with_its_writes_applied(stage: Stage, name: str) -> None:
    stage.script([])
    built = Built(stage)
    note = built.new_id()
    custom = PendingCustom(custom_type="note", payload=1)
    built.writes.append(set_value(values.pending_entry(note), custom))
    steer, follow_up = built.pending(built.user("s")), built.pending(built.user("f"))
    control = CancelRequested(
        requested_at=1, drained_steer=(steer,), drained_follow_up=(follow_up,)
    )
    inbox = Inbox(steer=(), follow_up=(), writes=(note,))
    operation = await built.durable(built.run(phase(built, name), control=control, inbox=inbox))
    ran: list[str] = []
    for hook in ("before_drive", "before_run", "before_run_end", "after_response"):
        stage.harness.hooks.on(hook, lambda event, context: ran.append("ran"))
    # The drained input can still be read, in any process, until the operation is over.
    again = ok(await stage.harness.request_abort(operation, BACKGROUND))
    assert not again.newly_requested
    assert [canonical_entry_text(m) for m in (*again.steer, *again.follow_up)] == ["s", "f"]
    settled = ok(await stage.drive(operation))
    assert settled.outcome.kind == "aborted"
    assert ran == []
    assert "request" not in stage.journal
    texts = [canonical_entry(entry) for entry in await branch(stage.memory)]
    aborted = [("assistant", "dropped", "aborted", (("text", "part"),))]
    assert texts == [
        ("user", "go"),
        *(aborted if name == "pending" else []),
        ("custom", "note", "1"),
    ]
    assert await leftovers(stage.memory, set()) == []
    assert stage.memory.state.lists == {}


def canonical_entry_text(message: object) -> object:
    return getattr(message, "content", None)


async def test_a_complete_looking_draft_is_still_aborted(stage: Stage) -> None:
    stage.script([])
    built = Built(stage)
    lost = pending(built)
    state = built.run(AssistantPhase(generation=lost), control=CANCELLED)
    settled = ok(await stage.drive(await built.durable(state)))
    assert settled.outcome.kind == "aborted"
    assert settled.outcome.final_entry_id == lost.response_entry_id
    assert stage.memory.state.usage[lost.usage_id].usage.total_tokens == 0


async def test_a_batch_is_brought_to_its_end_without_running_anything(stage: Stage) -> None:
    runs: list[str] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        runs.append("ran")
        return text_result("x")

    stage.tool("t", work, replay="safe").script([])
    built = Batched(stage, "t", "t", "t", "t")
    built.completed("first").lost("safe", checkpoint="half").ready("third").planned()
    operation = await built.open()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    settled = ok(await stage.drive(operation))
    assert settled.outcome.kind == "aborted"
    assert runs == [], "a restored call is never replayed under cancellation"
    texts = [canonical_entry(entry) for entry in await branch(stage.memory)][2:]
    assert [line[-1] for line in texts] == [False, True, False, True]
    assert texts[1][3][0] == ("text", "half")
    assert texts[2][3] == (("text", "third"),)
    assert await leftovers(stage.memory, set()) == []
