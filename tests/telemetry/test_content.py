"""Spans say which and how much, never what: no scenario and no failure brings content into one (§5.8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from harness.context import Context
from harness.messages import AgentToolResult, DeferredHandle, UserMessage, text_result
from harness.models.script import (
    Call,
    Defer,
    Fail,
    Raise,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    Thinking,
    say,
    steps,
)
from harness.runtime.drive import DriveOptions
from harness.runtime.hooks import BeforeRun, BeforeTool, ContextChange, HookFailed, ToolDecision
from harness.settings import CompactionSettings, RetryPolicy, StreamOptions
from harness.storage.writes import InsertEntry, SetValue, Write
from harness.telemetry import AttributeName
from harness.testing.playing import play
from harness.testing.scenarios import SCENARIOS, Scenario
from harness.tools.protocol import ToolCallRequest
from tests.crash.sessions import MemorySession
from tests.runtime.stage import Stage, ok
from tests.telemetry.recording import HANDLER, WRITE, Recording, attributes

SECRET = "sentinel"

_OPERATIONS = ("pi.harness.run", "pi.harness.compaction", "pi.harness.navigation")
_WITHIN = ("pi.harness.checkpoint", "pi.harness.turn", "pi.harness.step")

# What may stand directly above each span; None is the caller's own place.
PARENTS: dict[str, set[str | None]] = {
    "pi.harness.run": {None},
    "pi.harness.compaction": {None},
    "pi.harness.navigation": {None},
    "pi.harness.checkpoint": {"pi.harness.run"},
    "pi.harness.turn": {"pi.harness.run"},
    "pi.harness.step": {
        "pi.harness.turn",
        "pi.harness.checkpoint",
        "pi.harness.compaction",
        "pi.harness.navigation",
    },
    "pi.harness.tool": {"pi.harness.turn"},
    "pi.harness.hook": {*_OPERATIONS, *_WITHIN, "pi.ai.request"},
    "pi.harness.sleep": {*_OPERATIONS, "pi.harness.turn"},
    "pi.ai.request": {"pi.harness.step", "pi.harness.checkpoint"},
    WRITE: {None, *_OPERATIONS, *_WITHIN, "pi.harness.tool"},
    HANDLER: {None, *_OPERATIONS, *_WITHIN, "pi.harness.tool"},
}


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_every_scenario_is_told_without_content(
    scenario: Scenario, recording: Recording
) -> None:
    played = await play(scenario, MemorySession(), context=recording.context())
    assert played.problems == []
    assert len(recording.traces) >= 1
    declared = {*get_args(AttributeName), "error.type"}
    for span in recording.spans:
        above = recording.parent(span)
        assert (None if above is None else above.name) in PARENTS[span.name], span.name
        assert attributes(span).keys() <= declared
        assert span.events == ()
        assert span.links == ()
    assert _told(recording, played.world.writes) == []


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
async def test_a_process_that_takes_over_tells_no_more(
    scenario: Scenario, recording: Recording
) -> None:
    played = await play(scenario, MemorySession(), (9,), context=recording.context())
    assert _told(recording, played.world.writes) == []


def _told(recording: Recording, writes: list[Write]) -> list[str]:
    """Texts of a conversation that are somewhere in its spans, but for the names of tools that ran."""
    said = recording.everything_said()
    names = {attributes(span).get("pi.tool.name") for span in recording.spans}
    return sorted(text for text in set(_content(writes)) - names if text in said)


def _content(writes: list[Write]) -> Iterator[str]:
    """The texts that people, models and tools brought in."""
    for write in writes:
        match write:
            case InsertEntry(entry=entry):
                yield from _texts(msgspec.to_builtins(entry.payload))
            case SetValue(namespace="pi.op.state" | "pi.op.tool.args", value=value):
                yield from _texts(msgspec.to_builtins(value))
            case _:
                continue


# Where in stored JSON the texts are; arguments and details are content through and through.
_TEXTS = frozenset(("text", "thinking", "content", "errorMessage", "message", "summary"))
_WHOLE = frozenset(("arguments", "details"))


# Any: JSON.
def _texts(found: Any, *, whole: bool = False, key: str = "") -> Iterator[str]:
    match found:
        # Shorter ones are parts of many words.
        case str() if (whole or key in _TEXTS) and len(found) >= 6:
            yield found
        case dict():
            for name, item in found.items():
                yield from _texts(item, whole=whole or name in _WHOLE, key=name)
        case list() | tuple():
            for item in found:
                yield from _texts(item, whole=whole, key=key)
        case _:
            return


def _fails_in_every_way(request: ScriptedRequest) -> ScriptedResponse:
    if request.context.system_prompt == f"{SECRET} system":
        match request.index:
            case 0:
                return steps(Text(f"{SECRET} part"), Fail(f"{SECRET} busy", "retryable"))
            case 1:
                return steps(Raise(ConnectionError(f"{SECRET} broken")))
            case 2:
                return steps(
                    Thinking(f"{SECRET} thought"),
                    Call("works", {"q": f"{SECRET} argument"}, id=f"{SECRET} id"),
                    Call("breaks", {"q": f"{SECRET} argument"}),
                    Call(f"{SECRET} tool", {}),
                )
            case 3:
                return steps(Fail(f"{SECRET}: prompt is too long", "overflow"))
            case _:
                return say(f"{SECRET} answer")
    return say(f"{SECRET} summary " * 20)


async def test_a_run_full_of_secrets_and_failures(stage: Stage, recording: Recording) -> None:
    async def works(request: ToolCallRequest[None]) -> AgentToolResult:
        await request.invocation.set_memo("memo", f"{SECRET} memo")
        request.on_update(text_result(f"{SECRET} half"), checkpoint=True)
        return text_result(f"{SECRET} result", details={"d": f"{SECRET} details"})

    async def breaks(request: ToolCallRequest[None]) -> AgentToolResult:
        raise ValueError(f"{SECRET} tool failure")

    def listener(event: object, context: Context) -> None:
        raise RuntimeError(f"{SECRET} listener")

    def hook_breaks(event: object, context: Context) -> None:
        raise RuntimeError(f"{SECRET} hook")

    def injects(event: BeforeRun, context: Context) -> tuple[UserMessage, ...]:
        return (UserMessage(content=f"{SECRET} injected", timestamp=1),)

    def rewrites(event: BeforeTool, context: Context) -> ToolDecision:
        return ToolDecision(args={**event.args, "more": f"{SECRET} more"})

    stage.script(_fails_in_every_way)
    stage.tool("works", works)
    stage.tool("breaks", breaks)
    harness = await stage.open(
        system_prompt=f"{SECRET} system",
        retry=RetryPolicy(max_retries=5, base_delay_ms=1),
        compaction=CompactionSettings(keep_recent_tokens=1),
        stream_options=StreamOptions(headers={"x-secret": f"{SECRET} header"}),
    )
    harness.events.on("*", listener)
    harness.hooks.on("before_run", hook_breaks)
    harness.hooks.on("before_run", injects)
    harness.hooks.on("before_tool", rewrites)
    harness.hooks.on(
        "transform_context", lambda event, context: ContextChange(messages=event.messages)
    )
    context = recording.context()
    await harness.tree.set_name(f"{SECRET} name", context)
    await harness.tree.append_custom_entry("note", {"c": f"{SECRET} custom"}, context)
    ok(await harness.prompt(f"{SECRET} prompt", context))
    ok(await harness.compact(context, custom_instructions=f"{SECRET} instructions"))
    leaf = await harness.tree.get_leaf_id(context)
    assert leaf is not None
    ok(await harness.prompt(f"{SECRET} again", context))
    ok(await harness.navigate(leaf, context, summarize=True, label=f"{SECRET} label"))
    names = {span.name for span in recording.spans}
    assert {"pi.harness.tool", "pi.harness.hook", "pi.ai.request", HANDLER, WRITE} < names
    assert "pi.harness.sleep" in names
    assert SECRET not in recording.everything_said()


async def test_a_pass_that_a_hook_ends_says_only_by_which_class(
    stage: Stage, recording: Recording
) -> None:
    stage.script([steps(Defer(DeferredHandle(id=SECRET, provider=SECRET, model_id="m", api="a")))])
    harness = await stage.open()
    operation = await stage.accept(f"{SECRET} prompt")

    def refuses(event: object, context: Context) -> None:
        raise PermissionError(f"{SECRET} refusal")

    harness.hooks.on("before_drive", refuses)
    with pytest.raises(HookFailed):
        await harness.drive(DriveOptions(operation), recording.context())
    run = recording.only("pi.harness.run")
    assert run.status.description == "HookFailed"
    assert recording.only("pi.harness.hook").status.description == "PermissionError"
    assert SECRET not in recording.everything_said()
