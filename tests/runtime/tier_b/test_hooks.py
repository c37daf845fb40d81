"""Hooks: order, aggregation, isolation, and what a crash makes of their results (§5.6)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from harness.context import BACKGROUND, Context
from harness.messages import (
    AgentToolResult,
    AssistantMessage,
    TextContent,
    UserMessage,
    plain_text,
    text_result,
)
from harness.models.script import call, say
from harness.operation.events import HandlerError
from harness.runtime.hooks import (
    AfterResponse,
    AfterTool,
    BeforePayload,
    BeforeRequest,
    BeforeRun,
    BeforeTool,
    Block,
    ContextChange,
    HookFailed,
    HookName,
    Payload,
    ToolDecision,
    ToolPatch,
    TransformContext,
)
from harness.settings import StreamOptions, StreamOptionsPatch
from harness.testing.judging import branch, canonical_entry
from harness.tools.protocol import ToolCallRequest
from harness.usage import ZERO_USAGE as ZERO
from tests.runtime.stage import Stage, ok


async def texts(stage: Stage) -> list[Any]:
    return [canonical_entry(entry) for entry in await branch(stage.memory)]


def user(stage: Stage, text: str) -> UserMessage:
    return UserMessage(content=text, timestamp=stage.clock.now_ms())


def tooled(stage: Stage) -> list[dict[str, Any]]:
    """A stage whose model calls one tool; returns the arguments that it is run with."""
    ran: list[dict[str, Any]] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        ran.append(request.arguments)
        return text_result("raw", details={"n": 1})

    stage.tool("t", work).script([call("t", {"a": 1}), say("x")])
    return ran


async def test_before_run_appends_and_shows_what_is_there(stage: Stage) -> None:
    seen: list[list[str]] = []

    def handler(name: str) -> Any:
        def inject(event: BeforeRun, context: Context) -> tuple[UserMessage, ...]:
            seen.append([plain_text(getattr(m, "content", "")) for m in event.prompt])
            return (user(stage, name),)

        return inject

    stage.script([say("x")])
    await stage.open()
    stage.harness.hooks.on("before_run", handler("one"))
    stage.harness.hooks.on("before_run", handler("two"))
    await stage.prompt()
    assert seen == [["go"], ["go", "one"]]
    assert [line[1] for line in (await texts(stage))[:3]] == ["go", "one", "two"]
    assert (
        "TX entry user; entry user; set pi.lane.leaf; set pi.op.state checkpoint need_assistant"
        in (stage.journal)
    )


async def test_transform_context_is_for_one_request_only(stage: Stage) -> None:
    def shorten(event: TransformContext, context: Context) -> ContextChange:
        return ContextChange(messages=(user(stage, "instead"),), system_prompt="be kind")

    def extend(event: TransformContext, context: Context) -> ContextChange:
        return ContextChange(system_prompt=event.system_prompt + " and brief")

    stage.script([say("x")])
    await stage.open(system_prompt="be")
    stage.harness.hooks.on("transform_context", shorten)
    stage.harness.hooks.on("transform_context", extend)
    await stage.prompt()
    assert stage.provider is not None
    (request,) = stage.provider.scripted.requests
    assert request.context.system_prompt == "be kind and brief"
    assert [plain_text(m.content) for m in request.context.messages] == ["instead"]
    assert (await texts(stage))[0] == ("user", "go")


async def test_before_request_patches_merge_field_by_field(stage: Stage) -> None:
    patches = [
        StreamOptionsPatch(max_tokens=7, temperature=0.5),
        StreamOptionsPatch(temperature=None),
    ]

    def handler(patch: StreamOptionsPatch) -> Any:
        def apply(event: BeforeRequest, context: Context) -> StreamOptionsPatch:
            return patch

        return apply

    stage.script([say("x")])
    await stage.open(stream_options=StreamOptions(temperature=0.1, timeout_ms=5))
    for patch in patches:
        stage.harness.hooks.on("before_request", handler(patch))
    await stage.prompt()
    assert stage.provider is not None
    stream = stage.provider.scripted.requests[0].options.stream
    assert stream == StreamOptions(max_tokens=7, timeout_ms=5)


async def test_before_payload_replaces_the_wire_payload(stage: Stage) -> None:
    def first(event: BeforePayload, context: Context) -> Payload:
        return Payload({"first": True})

    def second(event: BeforePayload, context: Context) -> Payload:
        assert isinstance(event.payload, dict)
        return Payload({**event.payload, "second": True})

    stage.script([say("x")])
    await stage.open()
    stage.harness.hooks.on("before_payload", first)
    stage.harness.hooks.on("before_payload", second)
    await stage.prompt()
    assert stage.provider is not None
    assert stage.provider.scripted.payloads == [{"first": True, "second": True}]


async def test_after_response_transforms_what_is_committed_and_reported(stage: Stage) -> None:
    def mark(event: AfterResponse, context: Context) -> AssistantMessage:
        assert event.status == 200
        content = (*event.message.content, TextContent(text="!"))
        return msgspec.structs.replace(event.message, content=content)

    stage.script([say("x")])
    await stage.open()
    stage.harness.hooks.on("after_response", mark)
    stage.harness.hooks.on("after_response", mark)
    outcome = await stage.prompt()
    assert (await texts(stage))[1][2] == (("text", "x"), ("text", "!"), ("text", "!"))
    assert len(getattr(outcome, "final_message").content) == 3  # noqa: B009  # of any outcome


async def test_an_after_response_that_claims_an_abort_is_ignored(stage: Stage) -> None:
    def claim(event: AfterResponse, context: Context) -> AssistantMessage:
        return msgspec.structs.replace(event.message, stop_reason="aborted")

    stage.script([say("x")])
    await stage.open()
    stage.harness.hooks.on("after_response", claim)
    outcome = await stage.prompt()
    assert outcome.kind == "completed"
    assert "handler_error hook after_response" in stage.journal


async def test_before_tool_arguments_chain(stage: Stage) -> None:
    ran = tooled(stage)

    def add(name: str) -> Any:
        def change(event: BeforeTool, context: Context) -> ToolDecision:
            return ToolDecision(args={**event.args, name: len(event.args)})

        return change

    await stage.open()
    stage.harness.hooks.on("before_tool", add("b"))
    stage.harness.hooks.on("before_tool", add("c"))
    await stage.prompt()
    assert ran == [{"a": 1, "b": 1, "c": 2}]


async def test_the_first_block_ends_the_pipeline(stage: Stage) -> None:
    ran = tooled(stage)
    asked: list[str] = []
    await stage.open()
    blocked = ToolDecision(block=Block("not today"))
    stage.harness.hooks.on("before_tool", lambda event, context: blocked)
    stage.harness.hooks.on("before_tool", lambda event, context: asked.append("second"))
    await stage.prompt()
    assert ran == []
    assert asked == []
    assert (await texts(stage))[2][3:] == ((("text", "not today"),), True)


async def test_before_tool_fails_closed(stage: Stage) -> None:
    ran = tooled(stage)

    def broken(event: BeforeTool, context: Context) -> None:
        raise RuntimeError("policy server is down")

    await stage.open()
    stage.harness.hooks.on("before_tool", broken)
    outcome = await stage.prompt()
    assert outcome.kind == "completed"
    assert ran == []
    assert (await texts(stage))[2][-1] is True
    assert "handler_error hook before_tool" in stage.journal


async def test_replaced_arguments_are_validated_again(stage: Stage) -> None:
    ran: list[str] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        ran.append("ran")
        return text_result("x")

    stage.tool("t", work).script([call("t", {"a": 1}), say("x")])
    stage.tools[0].parameters = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
    }
    await stage.open()
    wrong = ToolDecision(args={"a": "one"})
    stage.harness.hooks.on("before_tool", lambda event, context: wrong)
    await stage.prompt()
    assert ran == []
    assert (await texts(stage))[2][-1] is True


async def test_after_tool_patches_field_by_field(stage: Stage) -> None:
    tooled(stage)
    patches = [
        ToolPatch(content=(TextContent(text="patched"),)),
        ToolPatch(is_error=True, terminate=True),
    ]
    seen: list[tuple[str, bool]] = []

    def handler(patch: ToolPatch) -> Any:
        def apply(event: AfterTool, context: Context) -> ToolPatch:
            seen.append((plain_text(event.content), event.is_error))
            return patch

        return apply

    await stage.open()
    for patch in patches:
        stage.harness.hooks.on("after_tool", handler(patch))
    await stage.prompt()
    assert seen == [("raw", False), ("patched", False)]
    entry: Any = (await branch(stage.memory))[2]
    assert entry.message.details == {"n": 1}, "what no patch names stays"
    assert (await texts(stage))[2][3:] == ((("text", "patched"),), True, "terminate")
    assert "tool_end t error" in stage.journal, "events show what the hooks made of it"


ISOLATED: tuple[HookName, ...] = (
    "before_run",
    "transform_context",
    "before_request",
    "before_payload",
    "after_response",
    "after_tool",
    "before_run_end",
)


@pytest.mark.parametrize("wrong", ["raises", "returns nonsense"])
@pytest.mark.parametrize("name", ISOLATED)
async def test_a_failing_handler_is_skipped_and_reported(
    stage: Stage, name: HookName, wrong: str
) -> None:
    tooled(stage)
    called: list[str] = []
    reports: list[HandlerError] = []

    def broken(event: object, context: Context) -> object:
        if wrong == "raises":
            raise RuntimeError("broken")
        return 42

    await stage.open()
    stage.harness.events.on(HandlerError, lambda event, context: reports.append(event))
    stage.harness.hooks.on(name, broken)
    stage.harness.hooks.on(name, lambda event, context: called.append(name))
    outcome = await stage.prompt()
    assert outcome.kind == "completed"
    assert called, "the handlers after it still run"
    assert {report.name for report in reports} == {name}
    assert reports[0].lane == "main"


async def test_a_failing_before_drive_rejects_the_pass_and_nothing_else(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()

    def broken(event: object, context: Context) -> None:
        raise RuntimeError("not now")

    remove = stage.harness.hooks.on("before_drive", broken)
    operation = await stage.accept()
    before = len(stage.storage.raw)
    with pytest.raises(HookFailed):
        await stage.drive(operation)
    assert len(stage.storage.raw) == before
    assert stage.harness.faulted is None
    assert stage.lane.drive is None
    remove()
    assert ok(await stage.drive(operation)).outcome.kind == "completed"


@pytest.mark.parametrize(
    ("name", "consuming", "again"),
    [
        ("before_run", "set pi.op.state checkpoint need_assistant", True),
        ("before_request", "assistant pending 1", True),
        ("before_tool", "set pi.op.tool_args", True),
        ("before_run_end", "set pi.lane.lastResult", True),
        # Nobody has the response, or the result, any more: it is synthesized without the hook.
        ("after_response", "entry assistant:toolUse", False),
        ("after_tool", "set pi.pending.entry toolResult", False),
    ],
)
async def test_a_crash_before_the_consuming_commit(
    stage: Stage, name: HookName, consuming: str, again: bool
) -> None:
    """Before that commit a hook may run again where its effect is repeated; after it, never."""
    tooled(stage)
    ran: list[str] = []

    def watch() -> None:
        stage.harness.hooks.on(name, lambda event, context: ran.append(name))

    await stage.open()
    watch()
    operation = await stage.accept()
    parked = stage.gated.park(consuming)
    driving = stage.drive(operation)
    await parked.reached()
    assert ran == [name]
    parked.fail(OSError("gone"))
    await asyncio.gather(driving, return_exceptions=True)
    await stage.reopen()
    watch()
    ran.clear()
    await stage.drive(operation, wait=True)
    first = 1 if again else 0
    # before_request and after_response also belong to the requests that follow.
    later = {"before_request": 2, "after_response": 1}.get(name, 0)
    assert len(ran) >= first
    assert len(ran) <= max(first, later, 1)


async def test_hooks_get_copies(stage: Stage) -> None:
    ran = tooled(stage)

    def spoil(event: BeforeTool, context: Context) -> None:
        event.args["spoiled"] = True

    await stage.open()
    stage.harness.hooks.on("before_tool", spoil)
    await stage.prompt()
    assert ran == [{"a": 1}]


async def test_listeners_are_isolated_and_in_order(stage: Stage) -> None:
    heard: list[str] = []

    def broken(event: object, context: Context) -> None:
        heard.append("broken")
        raise RuntimeError("broken")

    async def slow(event: object, context: Context) -> None:
        await asyncio.sleep(0)
        heard.append("slow")

    stage.script([say("x")])
    await stage.open()
    stage.harness.events.on("run_end", broken)
    stage.harness.events.on("run_end", slow)
    stage.harness.events.on("run_end", lambda event, context: heard.append("last"))
    outcome = await stage.prompt()
    assert outcome.kind == "completed"
    assert heard == ["broken", "slow", "last"]
    ok(await stage.harness.record_usage(ZERO, BACKGROUND))
    assert "handler_error event run_end" in stage.journal
