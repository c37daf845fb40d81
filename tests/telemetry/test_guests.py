"""Spans around code that is not the harness's: hooks, listeners, tools and providers that fail (§5.8)."""

from __future__ import annotations

import pytest

from harness.context import BACKGROUND, Context
from harness.messages import AgentToolResult, text_result
from harness.models.script import (
    Call,
    Raise,
    ScriptedResponse,
    call,
    calls,
    fail,
    say,
    steps,
)
from harness.operation.results import DriveSettled
from harness.runtime.drive import DriveOptions
from harness.runtime.hooks import BeforePayload, BeforeTool, Block, Payload, ToolDecision
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok
from tests.telemetry.recording import HANDLER, Recording, attributes


async def _echo(request: ToolCallRequest[None]) -> AgentToolResult:
    return text_result("echoed")


async def test_each_handler_of_a_hook_has_a_span(stage: Stage, recording: Recording) -> None:
    stage.script([call("echo"), say("done")])
    stage.tool("echo", _echo)
    harness = await stage.open(listen=False)

    def blocks(event: BeforeTool, context: Context) -> ToolDecision:
        return ToolDecision(block=Block(reason="not today"))

    def breaks(event: object, context: Context) -> None:
        raise ZeroDivisionError("secret")

    def replaces(event: BeforePayload, context: Context) -> Payload:
        return Payload(event.payload)

    harness.hooks.on("before_run", lambda event, context: None, id="quiet")
    harness.hooks.on("before_run", breaks)
    harness.hooks.on("before_tool", blocks, id="guard")
    harness.hooks.on("before_payload", replaces)
    ok(await harness.prompt("go", recording.context()))
    assert recording.tree("pi.hook.name", "pi.hook.registration_id", "pi.hook.outcome") == [
        "run",
        "  hook before_run quiet skipped",
        "  hook before_run failed",
        "  checkpoint",
        "  turn",
        "    step",
        "      ai.request",
        "        hook before_payload completed",
        # A blocked tool has no effect, and so no span.
        "    hook before_tool guard blocked",
        "  checkpoint",
        "  turn",
        "    step",
        "      ai.request",
        "        hook before_payload completed",
        "  checkpoint",
    ]
    failed = recording.named("pi.harness.hook")[1]
    assert failed.status.description == "ZeroDivisionError"
    assert failed.events == ()


async def test_event_handlers_hang_below_what_they_hear_of(
    stage: Stage, recording: Recording
) -> None:
    stage.script([call("echo"), say("done")])

    async def reports(request: ToolCallRequest[None]) -> AgentToolResult:
        request.on_update(text_result("half"))
        return text_result("whole")

    stage.tool("echo", reports)
    harness = await stage.open(listen=False)

    def breaks(event: object, context: Context) -> None:
        raise KeyError("secret")

    for type_ in ("run_start", "turn_start", "tool_start", "tool_update", "message_start"):
        harness.events.on(type_, lambda event, context: None)
    harness.events.on("run_end", breaks)
    ok(await harness.prompt("go", recording.context()))
    handlers = recording.named(HANDLER)
    heard = [
        (attributes(span)["pi.event.type"], getattr(recording.parent(span), "name", None))
        for span in handlers
    ]
    # The acceptance is the caller's own; it has no span of the harness.
    assert heard[0] == ("run_start", None)
    assert ("turn_start", "pi.harness.step") in heard
    assert ("message_start", "pi.harness.step") in heard
    assert ("tool_start", "pi.harness.turn") in heard
    assert ("tool_update", "pi.harness.tool") in heard
    assert heard[-1] == ("run_end", "pi.harness.checkpoint")
    assert {attributes(span)["pi.lane.name"] for span in handlers} == {"main"}
    assert handlers[-1].status.description == "KeyError"


async def test_what_the_gate_refused_was_never_asked(stage: Stage, recording: Recording) -> None:
    stage.script([say("never said")])
    harness = await stage.open(listen=False)
    operation = await stage.accept()

    async def abort(event: object, context: Context) -> None:
        ok(await harness.request_abort(operation, BACKGROUND))

    harness.hooks.on("transform_context", abort)
    driven = ok(await harness.drive(DriveOptions(operation), recording.context()))
    assert isinstance(driven, DriveSettled)
    assert driven.outcome.kind == "aborted"
    assert recording.named("pi.ai.request") == []
    assert "request" not in stage.journal


async def test_a_tool_that_fails_and_one_that_is_unknown(
    stage: Stage, recording: Recording
) -> None:
    stage.script([calls(Call("breaks"), Call("unheard of")), say("done")])

    async def breaks(request: ToolCallRequest[None]) -> AgentToolResult:
        raise RuntimeError("secret")

    stage.tool("breaks", breaks)
    await stage.open(listen=False)
    ok(await stage.harness.prompt("go", recording.context()))
    tool = recording.only("pi.harness.tool")
    assert attributes(tool)["pi.tool.is_error"] is True
    assert tool.status.description == "tool_error"


@pytest.mark.parametrize(
    ("response", "request_error", "step_error"),
    [
        (fail("no credit", kind="terminal"), "terminal", "terminal"),
        (steps(Raise(OSError("secret"))), "OSError", "error"),
    ],
)
async def test_errors_are_classes_and_codes(
    stage: Stage,
    recording: Recording,
    response: ScriptedResponse,
    request_error: str,
    step_error: str,
) -> None:
    stage.script([response])
    await stage.open(listen=False)
    outcome = ok(await stage.harness.prompt("go", recording.context()))
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert recording.only("pi.ai.request").status.description == request_error
    assert recording.only("pi.harness.step").status.description == step_error
    run = recording.only("pi.harness.run")
    assert run.status.description == outcome.error.code
    assert attributes(run)["error.type"] == outcome.error.code
    drained = [attributes(span).get("pi.checkpoint.kind") for span in recording.spans]
    assert "failure_drain" in drained
