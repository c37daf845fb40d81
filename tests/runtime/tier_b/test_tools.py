"""Tool batches: intent, effect, staging in completion order, placement in source order (§3.8)."""

from __future__ import annotations

from harness.context import BACKGROUND, Context
from harness.messages import AgentToolResult, text_result
from harness.models.script import Call, Gate, ScriptedResponse, call, calls, say, tokens
from harness.operation.events import ToolUpdateEvent
from harness.runtime.hooks import AfterTool, BeforeTool, Block, ToolDecision
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, Work, ok, settle
from tests.runtime.tier_b.telling import (
    ACCEPTED,
    STARTED,
    answered,
    asked,
    ended,
    placed,
    since,
    told,
)

DONE = [*asked(), *answered("stop", "checkpoint may_finish"), "turn_end 0", *ended("completed")]
MEMO = "TX set pi.op.tool_memo"
CHECKPOINT = "TX set pi.pending.tool_output"


def says(text: str, gate: Gate | None = None, *, ends: bool = False) -> Work:
    """A tool that answers, after a gate if there is one."""

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        if gate is not None:
            await gate.pass_through()
        return text_result(text, terminate=ends)

    return work


def planned(*states: str) -> list[str]:
    return [
        *ACCEPTED,
        *STARTED,
        *asked(),
        *answered("toolUse", f"tools [{' '.join(states)}]"),
    ]


async def test_one_call_with_memo_and_checkpoint(stage: Stage) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await request.invocation.set_memo("step", 1)
        request.on_update(text_result("half"), checkpoint=True)
        return text_result("done")

    stage.tool("t", work).script([call("t"), say("x")])
    await stage.open()
    await stage.prompt()
    assert told(stage) == [
        *planned("planned"),
        "TX set pi.op.tool_args; set pi.op.state tools [pending]",
        "tool t",
        "tool_start t",
        MEMO,
        "tool_update t",
        CHECKPOINT,
        "tool_end t",
        (
            "TX set pi.pending.entry toolResult; delete pi.pending.tool_output; "
            "delete pi.op.tool_memo; set pi.op.state tools [ready]"
        ),
        (
            "TX entry toolResult; delete pi.pending.entry; set pi.lane.leaf; delete pi.op.tool_args; "
            "set pi.op.state checkpoint need_assistant"
        ),
        *placed("toolResult"),
        "turn_end 1",
        *DONE,
    ]


async def test_reported_usage_becomes_a_ledger_row_when_the_result_is_placed(stage: Stage) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        return AgentToolResult(content=text_result("x").content, usage=tokens(5, 5))

    stage.tool("t", work).script([call("t"), say("x")])
    await stage.open()
    await stage.prompt()
    assert since(stage, "tool_end t")[:6] == [
        (
            "TX set pi.pending.entry toolResult; delete pi.pending.tool_output; "
            "set pi.op.state tools [ready]"
        ),
        (
            "TX entry toolResult; delete pi.pending.entry; usage; set pi.lane.leaf; "
            "delete pi.op.tool_args; set pi.op.state checkpoint need_assistant"
        ),
        *placed("toolResult"),
        "usage",
    ]


async def test_a_later_call_is_staged_at_once_and_placed_in_its_turn(stage: Stage) -> None:
    gate = Gate()
    stage.tool("a", says("a", gate)).tool("b", says("b"))
    stage.script([calls(Call("a"), Call("b"), Call("unknown")), say("x")])
    await stage.open()
    driving = stage.drive(await stage.accept())
    await gate.reached()
    await settle()
    waiting = [
        *planned("planned", "planned", "planned"),
        "TX set pi.op.tool_args; set pi.op.state tools [pending planned planned]",
        "TX set pi.op.tool_args; set pi.op.state tools [pending pending planned]",
        "tool a",
        "tool_start a",
        "tool b",
        "tool_start b",
        "tool_end b",
        "TX set pi.pending.entry toolResult:error; set pi.op.state tools [pending pending ready]",
        (
            "TX set pi.pending.entry toolResult; delete pi.pending.tool_output; "
            "set pi.op.state tools [pending ready ready]"
        ),
    ]
    assert sorted(told(stage)) == sorted(waiting)
    assert told(stage)[-1] == waiting[-1]
    gate.open()
    ok(await driving)
    assert told(stage)[len(waiting) :] == [
        "tool_end a",
        (
            "TX set pi.pending.entry toolResult; delete pi.pending.tool_output; "
            "set pi.op.state tools [ready ready ready]"
        ),
        (
            "TX entry toolResult; entry toolResult; entry toolResult:error; delete pi.pending.entry; "
            "delete pi.pending.entry; delete pi.pending.entry; set pi.lane.leaf; "
            "delete pi.op.tool_args; delete pi.op.tool_args; "
            "set pi.op.state checkpoint need_assistant"
        ),
        *placed("toolResult", "toolResult", "toolResult:error"),
        "turn_end 3",
        *DONE,
    ]


async def test_sequential_calls_start_when_the_one_before_is_placed(stage: Stage) -> None:
    stage.tool("a", says("a")).script([calls(Call("a"), Call("a")), say("x")])
    await stage.open(tool_execution="sequential")
    await stage.prompt()
    assert told(stage) == [
        *planned("planned", "planned"),
        "TX set pi.op.tool_args; set pi.op.state tools [pending planned]",
        "tool a",
        "tool_start a",
        "tool_end a",
        (
            "TX set pi.pending.entry toolResult; delete pi.pending.tool_output; "
            "set pi.op.state tools [ready planned]"
        ),
        (
            "TX entry toolResult; delete pi.pending.entry; set pi.lane.leaf; "
            "set pi.op.state tools [completed planned]"
        ),
        *placed("toolResult"),
        "TX set pi.op.tool_args; set pi.op.state tools [completed pending]",
        "tool a",
        "tool_start a",
        "tool_end a",
        (
            "TX set pi.pending.entry toolResult; delete pi.pending.tool_output; "
            "set pi.op.state tools [completed ready]"
        ),
        (
            "TX entry toolResult; delete pi.pending.entry; set pi.lane.leaf; "
            "delete pi.op.tool_args; delete pi.op.tool_args; "
            "set pi.op.state checkpoint need_assistant"
        ),
        *placed("toolResult"),
        "turn_end 2",
        *DONE,
    ]


async def test_blocked_and_unknown_calls_have_neither_intent_nor_lifecycle(stage: Stage) -> None:
    stage.tool("t", says("never")).script([calls(Call("t"), Call("unknown")), say("x")])
    await stage.open()

    def block(event: BeforeTool, context: Context) -> ToolDecision:
        return ToolDecision(block=Block("not today"))

    stage.harness.hooks.on("before_tool", block)
    await stage.prompt()
    assert told(stage) == [
        *planned("planned", "planned"),
        "TX set pi.pending.entry toolResult:error; set pi.op.state tools [ready planned]",
        (
            "TX entry toolResult:error; delete pi.pending.entry; set pi.lane.leaf; "
            "set pi.op.state tools [completed planned]"
        ),
        *placed("toolResult:error"),
        "TX set pi.pending.entry toolResult:error; set pi.op.state tools [completed ready]",
        (
            "TX entry toolResult:error; delete pi.pending.entry; set pi.lane.leaf; "
            "set pi.op.state checkpoint need_assistant"
        ),
        *placed("toolResult:error"),
        "turn_end 2",
        *DONE,
    ]


async def test_calls_at_the_output_limit_run_nothing(stage: Stage) -> None:
    cut = calls(Call("t"), Call("t"), usage=tokens(1, 8_192))
    stage.tool("t", says("never"))
    stage.script([ScriptedResponse(cut.steps, usage=cut.usage, stop_reason="length"), say("x")])
    await stage.open()
    await stage.prompt()
    assert "tool t" not in stage.journal
    assert "tool_start t" not in stage.journal
    assert told(stage).count("entry_added toolResult:error") == 2


async def test_a_batch_in_which_every_call_terminates_ends_the_run(stage: Stage) -> None:
    stage.tool("t", says("done", ends=True)).script([calls(Call("t"))])
    await stage.open()
    await stage.prompt()
    assert since(stage, "tool_end t")[1:] == [
        (
            "TX entry toolResult; delete pi.pending.entry; set pi.lane.leaf; "
            "delete pi.op.tool_args; set pi.op.state checkpoint may_finish"
        ),
        *placed("toolResult"),
        "turn_end 1",
        *ended("completed"),
    ]


async def test_an_aborted_tool_keeps_its_result_and_planned_calls_never_start(
    stage: Stage,
) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        assert request.context.abort_signal is not None
        gate.open()
        await request.context.abort_signal.wait()
        return text_result("stopped", terminate=True)

    gate = Gate()
    stage.tool("t", work).script([calls(Call("t"), Call("t"))])
    await stage.open(tool_execution="sequential")
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.pass_through()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    ok(await driving)
    assert told(stage) == [
        *planned("planned", "planned"),
        "TX set pi.op.tool_args; set pi.op.state tools [pending planned]",
        "tool t",
        "tool_start t",
        "TX set pi.op.state tools [pending planned] (cancelling)",
        "run_abort 0/0",
        "tool_end t",
        (
            "TX set pi.pending.entry toolResult; delete pi.pending.tool_output; "
            "set pi.op.state tools [ready planned] (cancelling)"
        ),
        (
            "TX entry toolResult; delete pi.pending.entry; set pi.lane.leaf; "
            "set pi.op.state tools [completed planned] (cancelling)"
        ),
        *placed("toolResult"),
        (
            "TX set pi.pending.entry toolResult:error; "
            "set pi.op.state tools [completed ready] (cancelling)"
        ),
        (
            "TX entry toolResult:error; delete pi.pending.entry; set pi.lane.leaf; "
            "delete pi.op.tool_args; set pi.op.state checkpoint need_assistant (cancelling)"
        ),
        *placed("toolResult:error"),
        "turn_end 2",
        *ended("aborted"),
    ]


async def test_after_tool_waits_for_the_last_update_and_the_last_checkpoint(stage: Stage) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        request.on_update(text_result("one"), checkpoint=True)
        request.on_update(text_result("two"), checkpoint=True)
        return text_result("done")

    heard = Gate()

    async def slow(event: ToolUpdateEvent, context: Context) -> None:
        await heard.pass_through()

    def after(event: AfterTool, context: Context) -> None:
        stage.journal.append("hook after_tool")

    stage.tool("t", work).script([call("t"), say("x")])
    await stage.open()
    stage.harness.events.on(ToolUpdateEvent, slow)
    stage.harness.hooks.on("after_tool", after)
    last = stage.gated.park(
        lambda described: (
            CHECKPOINT.removeprefix("TX ") in described and stage.journal.count(CHECKPOINT) == 1
        )
    )
    driving = stage.drive(await stage.accept())
    await last.reached()
    await heard.reached()
    await settle()
    assert "hook after_tool" not in stage.journal
    heard.open()
    await settle()
    assert "hook after_tool" not in stage.journal
    last.release()
    ok(await driving)
    order = [
        line
        for line in stage.journal
        if line in (CHECKPOINT, "hook after_tool", "tool_end t") or "tools [ready]" in line
    ]
    assert order[:4] == [CHECKPOINT, CHECKPOINT, "hook after_tool", "tool_end t"]
    assert "tools [ready]" in order[4]


async def test_what_a_tool_does_to_its_arguments_is_its_own_affair(stage: Stage) -> None:
    seen: list[object] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        options = request.arguments["options"]
        assert isinstance(options, dict)
        options["handle"] = object()  # pyright: ignore[reportArgumentType]  # what tools do
        return text_result("done")

    def after(event: AfterTool, context: Context) -> None:
        seen.append(event.args)

    stage.tool("t", work).script([call("t", {"options": {"a": 1}}), say("x")])
    await stage.open()
    stage.harness.hooks.on("after_tool", after)
    await stage.prompt()
    assert told(stage)[-len(DONE) :] == DONE
    assert seen == [{"options": {"a": 1}}]
