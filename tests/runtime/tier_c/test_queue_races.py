"""Queues and configuration against the checkpoint that consumes them (§3.11, §4.3, §9.2)."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import BACKGROUND
from harness.messages import AgentToolResult, text_result
from harness.models.script import At, Gate, ScriptedRequest, ScriptedResponse, call, say, steps
from harness.runtime.requests import CompactionRequest, PromptRequest
from harness.settings import CompactionSettings, ModelIdentity, StreamOptions
from harness.testing.judging import branch, canonical_entry
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok, settle


async def texts(stage: Stage) -> list[object]:
    return [canonical_entry(entry) for entry in await branch(stage.memory)]


def held_tool(stage: Stage, gate: Gate) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await gate.pass_through()
        return text_result("x")

    stage.tool("t", work)


@pytest.mark.parametrize("first", ["cancel", "consumption"])
async def test_cancel_queued_vs_consumption(stage: Stage, first: str) -> None:
    gate = Gate()
    held_tool(stage, gate)
    stage.script([call("t"), say("x"), say("y")])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    entry = ok(await stage.harness.steer("maybe", BACKGROUND)).entry_id
    if first == "cancel":
        assert ok(await stage.harness.cancel_queued(entry, BACKGROUND)).kind == "cancelled"
        gate.open()
        await driving
        assert ("user", "maybe") not in await texts(stage)
        assert ok(await stage.harness.cancel_queued(entry, BACKGROUND)).kind == "not_found"
    else:
        consuming = stage.gated.park("entry user")
        gate.open()
        await consuming.reached()
        cancelling = asyncio.ensure_future(stage.harness.cancel_queued(entry, BACKGROUND))
        await settle()
        consuming.release()
        assert ok(await cancelling).kind == "already_consumed"
        await driving
        assert (await texts(stage)).count(("user", "maybe")) == 1


@pytest.mark.parametrize("first", ["capture", "queue"])
async def test_next_run_vs_acceptance(stage: Stage, first: str) -> None:
    stage.script([say("one"), say("two")])
    await stage.open()
    if first == "queue":
        queueing = stage.gated.park("set pi.pending.entry")
        next_run = asyncio.ensure_future(stage.harness.next_run("extra", BACKGROUND))
        await queueing.reached()
        accepting = asyncio.ensure_future(
            stage.harness.accept(PromptRequest(prompt="go"), BACKGROUND)
        )
        await settle()
        queueing.release()
        ok(await next_run)
        ok(await accepting)
        assert await texts(stage) == [("user", "extra"), ("user", "go")]
        assert stage.lane.projection.state.pending_next_run == ()
    else:
        accept = stage.gated.park("set pi.op.meta")
        accepting = asyncio.ensure_future(
            stage.harness.accept(PromptRequest(prompt="go"), BACKGROUND)
        )
        await accept.reached()
        next_run = asyncio.ensure_future(stage.harness.next_run("extra", BACKGROUND))
        await settle()
        accept.release()
        admitted = ok(await accepting)
        ok(await next_run)
        await stage.drive(admitted.operation_id)
        assert ("user", "extra") not in await texts(stage)
        assert len(stage.lane.projection.state.pending_next_run) == 1, "it outlives the operation"
        await stage.prompt("again")
        assert (await texts(stage))[2:4] == [("user", "extra"), ("user", "again")]


@pytest.mark.parametrize("first", ["setter", "step"])
async def test_set_model_vs_the_start_of_a_step(stage: Stage, first: str) -> None:
    other = ModelIdentity(provider="scripted", model_id="other")
    stage.script([say("x")])
    await stage.open()
    operation = await stage.accept()
    starting = stage.gated.park(
        "checkpoint need_assistant" if first == "setter" else "assistant ready"
    )
    driving = stage.drive(operation)
    await starting.reached()
    setting = asyncio.ensure_future(stage.harness.set_model(other, BACKGROUND))
    await settle()
    starting.release()
    await setting
    settled = ok(await driving)
    # The other model is not registered: the step that captured it fails in-band.
    expected = "failed" if first == "setter" else "completed"
    assert settled.outcome.kind == expected


@pytest.mark.parametrize("first", ["setter", "step"])
async def test_stream_options_vs_the_start_of_a_step(stage: Stage, first: str) -> None:
    stage.script([say("x")])
    await stage.open()
    operation = await stage.accept()
    starting = stage.gated.park(
        "checkpoint need_assistant" if first == "setter" else "assistant ready"
    )
    driving = stage.drive(operation)
    await starting.reached()
    setting = asyncio.ensure_future(
        stage.harness.set_stream_options(StreamOptions(max_tokens=7), BACKGROUND)
    )
    await settle()
    assert setting.done() == (first == "setter"), "the step start holds the settings line"
    starting.release()
    await setting
    ok(await driving)
    assert stage.provider is not None
    sent = stage.provider.scripted.requests[0].options.stream.max_tokens
    assert sent == (7 if first == "setter" else None)


async def test_a_write_before_the_final_command_discards_a_stale_preparation(stage: Stage) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        return say("summary" if request.context.system_prompt else "noted " * 20)

    stage.script(answer)
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=1))
    await stage.prompt("a")
    await stage.prompt("b")
    writing = stage.gated.park("entry custom:note")
    write = asyncio.ensure_future(stage.harness.tree.append_custom_entry("note", None, BACKGROUND))
    await writing.reached()
    # Prepared against the old leaf, while the write stands on the line before its command.
    accepting = asyncio.ensure_future(stage.harness.accept(CompactionRequest(), BACKGROUND))
    await settle()
    writing.release()
    await write
    admitted = ok(await accepting)
    settled = ok(await stage.drive(admitted.operation_id))
    assert settled.outcome.kind == "completed"
    told = await texts(stage)
    assert [line[0] for line in told[-2:]] == ["custom", "compaction"]  # type: ignore[index]
    meta = [line for line in stage.journal if "set pi.op.meta" in line]
    assert len([line for line in meta if "pi.op.preparation" in line]) == 1


async def test_a_write_after_acceptance_waits_for_the_structural_operation(stage: Stage) -> None:
    gate = Gate()

    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return steps(At(gate), *say("summary").steps)
        return say("noted " * 20)

    stage.script(answer)
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=1))
    await stage.prompt("a")
    await stage.prompt("b")
    admitted = ok(await stage.harness.accept(CompactionRequest(), BACKGROUND))
    driving = stage.drive(admitted.operation_id)
    await gate.reached()
    write = asyncio.ensure_future(stage.harness.tree.append_custom_entry("note", None, BACKGROUND))
    await settle()
    assert not write.done(), "a tree write waits while a compaction is open"
    gate.open()
    ok(await driving)
    await write
    assert [line[0] for line in (await texts(stage))[-2:]] == ["compaction", "custom"]  # type: ignore[index]


async def test_one_at_a_time_stays_so_across_a_crash(stage: Stage) -> None:
    gate = Gate()
    held_tool(stage, gate)
    stage.script([call("t"), say("one"), say("two")])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    ok(await stage.harness.steer("first", BACKGROUND))
    ok(await stage.harness.steer("second", BACKGROUND))
    consumed = stage.gated.park("entry user", durable=True)
    gate.open()
    await consumed.reached()
    closing = asyncio.ensure_future(stage.harness.close(BACKGROUND))
    await settle()
    consumed.release()
    await closing
    await asyncio.gather(driving, return_exceptions=True)
    await stage.reopen()
    assert stage.provider is not None
    ok(await stage.drive(operation))
    assert [line for line in await texts(stage) if line[0] in ("user", "assistant")][2:] == [  # type: ignore[index]
        ("user", "first"),
        ("assistant", "stop", (("text", "one"),)),
        ("user", "second"),
        ("assistant", "stop", (("text", "two"),)),
    ]
