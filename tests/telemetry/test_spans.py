"""Which spans an operation has, where they hang and what they say (§5.8)."""

from __future__ import annotations

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from harness.context import BACKGROUND
from harness.errors import HarnessClosed
from harness.messages import AgentToolResult, DeferredHandle, text_result
from harness.models.script import (
    At,
    Defer,
    Gate,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    call,
    fail,
    say,
    steps,
    tokens,
)
from harness.runtime.drive import DriveOptions
from harness.settings import CompactionSettings, RetryPolicy, StreamOptions
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok
from tests.telemetry.recording import WRITE, Recording, attributes

SMALL = CompactionSettings(keep_recent_tokens=1)
HANDLE = DeferredHandle(id="job-1", provider="scripted", model_id="scripted", api="scripted")


async def _echo(request: ToolCallRequest[None]) -> AgentToolResult:
    return text_result("echoed")


def _talks(request: ScriptedRequest) -> ScriptedResponse:
    # Only summaries have a system prompt here.
    if request.context.system_prompt:
        return say("summary", usage=tokens(2, 1))
    return say("noted " * 20)


async def test_a_run_with_a_tool(stage: Stage, recording: Recording) -> None:
    stage.script([call("echo", usage=tokens(10, 5)), say("done", deltas=3, usage=tokens(20, 4))])
    stage.tool("echo", _echo, replay="safe")
    await stage.open(listen=False)
    outcome = ok(await stage.harness.prompt("go", recording.context()))
    assert outcome.kind == "completed"
    assert recording.tree("pi.checkpoint.kind", "pi.step.outcome", "pi.tool.name") == [
        "run",
        "  checkpoint normal",
        "  turn",
        "    step succeeded",
        "      ai.request",
        "    tool echo",
        "  checkpoint normal",
        "  turn",
        "    step succeeded",
        "      ai.request",
        "  checkpoint normal",
    ]
    whose = {
        "pi.session.id": "stage",
        "pi.lane.name": "main",
        "pi.operation.id": outcome.run_id,
    }
    run = recording.only("pi.harness.run")
    assert attributes(run) == {
        **whose,
        "pi.operation.kind": "run",
        "pi.operation.recovery": False,
        "pi.operation.outcome": "completed",
    }
    assert run.status.status_code is StatusCode.UNSET
    turn = recording.named("pi.harness.turn")[0]
    step = recording.named("pi.harness.step")[0]
    assert attributes(step) == {
        **whose,
        "pi.step.kind": "assistant",
        # A turn is named after the step that opens it.
        "pi.step.id": attributes(turn)["pi.turn.id"],
        "pi.step.attempt": 1,
        "pi.step.recovery": False,
        "pi.step.outcome": "succeeded",
    }
    tool = recording.only("pi.harness.tool")
    invocation = attributes(tool)["pi.tool.invocation_id"]
    assert await stage.memory.get_entries([str(invocation)], BACKGROUND)
    assert attributes(tool) == {
        **whose,
        "pi.turn.id": attributes(turn)["pi.turn.id"],
        "pi.tool.name": "echo",
        "pi.tool.invocation_id": invocation,
        "pi.tool.replay": "safe",
        "pi.tool.recovery": False,
        "pi.tool.is_error": False,
    }
    request = recording.named("pi.ai.request")[1]
    assert request.kind is SpanKind.CLIENT
    assert attributes(request) == {
        **whose,
        "pi.ai.operation": "stream",
        "pi.ai.provider": "scripted",
        "pi.ai.model": "scripted",
        "pi.ai.api": "scripted",
        "pi.ai.deferred": False,
        "pi.ai.stream.chunk_count": 6,
        "pi.ai.stream.time_to_first_chunk_ms": 0,
        "pi.ai.http.status_code": 200,
        "pi.ai.response.stop_reason": "stop",
        "pi.ai.usage.input_tokens": 20,
        "pi.ai.usage.output_tokens": 4,
        "pi.ai.usage.cache_read_tokens": 0,
        "pi.ai.usage.cache_write_tokens": 0,
        "pi.ai.usage.total_tokens": 24,
        "pi.ai.usage.cost": 0.0,
    }
    assert attributes(recording.named("pi.ai.request")[0])["pi.ai.response.stop_reason"] == (
        "tool_use"
    )


async def test_every_commit_is_one_write_where_it_was_made(
    stage: Stage, recording: Recording
) -> None:
    stage.script([call("echo"), say("done")])

    async def notes(request: ToolCallRequest[None]) -> AgentToolResult:
        await request.invocation.set_memo("seen", True)
        request.on_update(text_result("half"), checkpoint=True)
        return text_result("whole")

    stage.tool("echo", notes)
    await stage.open(listen=False)
    ok(await stage.harness.prompt("go", recording.context()))
    writes = recording.named(WRITE)
    assert len(writes) == len(stage.storage.raw)
    # What a tool keeps and what a stream brings is written where it came about.
    above = [recording.parent(write) for write in writes]
    names = ["" if span is None else span.name for span in above]
    assert names.count("pi.harness.tool") == 2
    assert {"", "pi.harness.run", "pi.harness.checkpoint", "pi.harness.step", "pi.harness.turn"} < (
        set(names)
    )
    last = 0
    for write, committed in zip(writes, stage.storage.raw, strict=True):
        said = attributes(write)
        assert said["pi.session.item_count"] == len(committed)
        assert said["pi.session.id"] == "stage"
        assert said["pi.lane.name"] == "main"
        assert isinstance(said["pi.session.first_seq"], int)
        assert said["pi.session.first_seq"] > last
        last = said["pi.session.first_seq"] + len(committed) - 1
        assert said["pi.session.last_seq"] == last
    kinds = [attributes(write)["pi.session.item_kinds"] for write in writes]
    assert ("list",) in kinds  # the frames of the streams
    assert ("entry", "list", "usage", "value") in kinds  # a settlement


async def test_what_commits_nothing_has_no_write(stage: Stage, recording: Recording) -> None:
    stage.script([])
    await stage.open(listen=False)
    context = recording.context()
    ok(await stage.harness.cancel_queued("01900000-0000-7000-8000-000000000000", context))
    assert recording.spans == []
    nothing = await stage.harness.session.commit(stage.storage, (), context)
    assert nothing.seqs == ()
    assert recording.spans == []


async def test_a_retry_sleeps_inside_its_turn(stage: Stage, recording: Recording) -> None:
    stage.script([fail("busy", kind="retryable"), say("done")])
    await stage.open(listen=False, retry=RetryPolicy(max_retries=2, base_delay_ms=700))
    operation = await stage.accept()
    options = DriveOptions(operation, wait_for_retry=True)
    ok(await stage.harness.drive(options, recording.context()))
    assert recording.tree("pi.step.attempt", "pi.step.outcome", "pi.sleep.outcome") == [
        "run",
        "  checkpoint",
        "  turn",
        "    step 1 retry",
        "      ai.request",
        "    sleep elapsed",
        "    step 2 succeeded",
        "      ai.request",
        "  checkpoint",
    ]
    assert attributes(recording.only("pi.harness.sleep"))["pi.sleep.delay_ms"] == 700
    failed, _ = recording.named("pi.harness.step")
    assert (failed.status.status_code, failed.status.description) == (
        StatusCode.ERROR,
        "retryable",
    )
    assert recording.only("pi.harness.run").status.status_code is StatusCode.UNSET


async def test_a_retry_in_a_later_pass_carries_the_same_ids(
    stage: Stage, recording: Recording
) -> None:
    stage.script([fail("busy", kind="retryable"), say("done")])
    await stage.open(listen=False)
    operation = await stage.accept()
    root = recording.context()
    ok(await stage.harness.drive(DriveOptions(operation), root))
    await stage.reopen(listen=False)
    await stage.clock.sleep(600)
    ok(await stage.harness.drive(DriveOptions(operation), root))
    assert recording.tree(
        "pi.operation.recovery", "pi.operation.outcome", "pi.step.attempt", "pi.step.outcome"
    ) == [
        "run False suspended",
        "  checkpoint",
        "  turn",
        "    step 1 retry",
        "      ai.request",
        "run True completed",
        "  turn",
        "    step 2 succeeded",
        "      ai.request",
        "  checkpoint",
    ]
    first, second = recording.named("pi.harness.step")
    assert attributes(first)["pi.step.id"] == attributes(second)["pi.step.id"]


async def test_a_lost_request_is_settled_in_a_step_without_a_request(
    stage: Stage, recording: Recording
) -> None:
    gate = Gate()
    stage.script([steps(Text("part"), At(gate)), say("done")])
    await stage.open(listen=False)
    operation = await stage.accept()
    lost = stage.drive(operation)
    await gate.reached()
    await stage.reopen(listen=False)
    with pytest.raises(HarnessClosed):
        await lost
    options = DriveOptions(operation, wait_for_retry=True)
    ok(await stage.harness.drive(options, recording.context()))
    assert recording.tree("pi.step.attempt", "pi.step.recovery", "pi.step.outcome") == [
        "run",
        "  turn",
        "    step 1 True retry",
        "    step 1 False succeeded",
        "      ai.request",
        "  checkpoint",
    ]


async def test_a_manual_compaction(stage: Stage, recording: Recording) -> None:
    stage.script(_talks)
    await stage.open(listen=False, compaction=SMALL)
    await stage.prompt("a")
    await stage.prompt("b")
    recording.clear()
    assert ok(await stage.harness.compact(recording.context())).kind == "completed"
    tree = recording.tree("pi.operation.kind", "pi.step.kind", "pi.compaction.reason")
    assert tree[:3] == [
        "compaction compaction",
        "  step compaction manual",
        "    ai.request",
    ]
    assert set(tree[3:]) <= {"    ai.request"}
    step = attributes(recording.only("pi.harness.step"))
    assert "pi.task.id" in step
    assert "pi.step.id" not in step


async def test_a_compaction_inside_a_run_belongs_to_a_checkpoint(
    stage: Stage, recording: Recording
) -> None:
    overflowed = False

    def answer(request: ScriptedRequest) -> ScriptedResponse:
        nonlocal overflowed
        last = str(request.context.messages[-1].content)
        if not request.context.system_prompt and last == "c" and not overflowed:
            overflowed = True
            return fail("prompt is too long", kind="overflow")
        return _talks(request)

    stage.script(answer)
    await stage.open(listen=False, compaction=SMALL)
    await stage.prompt("a")
    await stage.prompt("b")
    assert ok(await stage.harness.prompt("c", recording.context())).kind == "completed"
    tree = [
        line
        for line in recording.tree("pi.checkpoint.kind", "pi.step.kind", "pi.step.outcome")
        if "ai.request" not in line
    ]
    assert tree == [
        "run",
        "  checkpoint normal",
        "  turn",
        "    step assistant overflow",
        "  checkpoint compaction",
        "  checkpoint compaction",
        "    step compaction succeeded",
        "  checkpoint normal",
        "  turn",
        "    step assistant succeeded",
        "  checkpoint normal",
    ]
    reasons = [attributes(step).get("pi.compaction.reason") for step in recording.spans]
    assert reasons.count("overflow") == 1


async def test_a_navigation_with_a_summary(stage: Stage, recording: Recording) -> None:
    stage.script(_talks)
    await stage.open(listen=False, compaction=SMALL)
    await stage.prompt("a")
    target = await stage.harness.tree.get_leaf_id(BACKGROUND)
    assert target is not None
    await stage.prompt("b")
    moved = ok(await stage.harness.navigate(target, recording.context(), summarize=True))
    assert moved.kind == "completed"
    assert recording.tree("pi.operation.kind", "pi.step.kind") == [
        "navigation navigation",
        "  step branch_summary",
        "    ai.request",
    ]
    recording.clear()
    ok(await stage.harness.navigate(None, recording.context()))
    assert recording.tree() == ["navigation"]


async def test_a_deferred_run(stage: Stage, recording: Recording) -> None:
    stage.script([steps(Defer(HANDLE)), steps(Defer(HANDLE)), say("ready")])
    await stage.open(listen=False, stream_options=StreamOptions(deferred=True))
    operation = await stage.accept()
    root = recording.context()
    ok(await stage.harness.drive(DriveOptions(operation), root))
    for _ in range(2):
        ok(await stage.harness.drive(DriveOptions(operation, poll_deferred=True), root))
    shown = recording.tree(
        "pi.operation.outcome",
        "pi.step.kind",
        "pi.step.attempt",
        "pi.step.outcome",
        "pi.ai.operation",
    )
    assert shown == [
        "run suspended",
        "  checkpoint",
        "  turn",
        "    step assistant 1 deferred",
        "      ai.request stream",
        "run suspended",
        "  turn",
        "    step deferred 1 deferred",
        "      ai.request fetch_deferred",
        "run completed",
        "  turn",
        "    step deferred 2 succeeded",
        "      ai.request fetch_deferred",
        "  checkpoint",
    ]
    assert {attributes(span)["pi.ai.deferred"] for span in recording.named("pi.ai.request")} == {
        True
    }
    assert "job-1" not in recording.everything_said()


async def test_cancelling_at_the_provider_is_a_request_of_the_reconciliation(
    stage: Stage, recording: Recording
) -> None:
    stage.script([steps(Defer(HANDLE))])
    await stage.open(listen=False, stream_options=StreamOptions(deferred=True))
    operation = await stage.accept()
    ok(await stage.drive(operation))
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    ok(await stage.harness.drive(DriveOptions(operation), recording.context()))
    assert recording.tree("pi.operation.outcome", "pi.checkpoint.kind", "pi.ai.operation") == [
        "run aborted",
        "  checkpoint abort_reconcile",
        "    ai.request cancel_deferred",
    ]
