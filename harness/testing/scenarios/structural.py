"""Compactions and navigations: asked for, at the threshold, after an overflow; plain and summarized."""

from __future__ import annotations

from harness.models.script import (
    Script,
    ScriptedRequest,
    ScriptedResponse,
    call,
    fail,
    say,
    tokens,
)
from harness.models.scripted import scripted_model
from harness.runtime.requests import CompactionRequest, NavigateOptions, NavigationRequest
from harness.settings import CompactionSettings
from harness.testing.scenarios.scenario import Scenario, options
from harness.testing.scenarios.tools import simple_tool
from harness.testing.world import World, responses

SMALL = CompactionSettings(keep_recent_tokens=10)


def _summarizes(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        # Only summaries have a system prompt here.
        if request.context.system_prompt:
            return say("what happened so far", usage=tokens(50, 5))
        return say("noted " * 40, usage=tokens(40, 40))

    return answer


MANUAL = Scenario(
    "manual compaction",
    lambda world: options(world, _summarizes(world), compaction=SMALL),
    request=lambda world: CompactionRequest(custom_instructions="be brief"),
    history=("a long story", "and another"),
)


def _overflows_once(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return say("what happened so far", usage=tokens(50, 5))
        if len(responses(world)) < 2:
            return say("noted " * 40, usage=tokens(40, 40))
        if not world.compactions():
            return fail("prompt is too long", kind="overflow", usage=tokens(9, 0))
        return say("it fits", usage=tokens(20, 2))

    return answer


OVERFLOW = Scenario(
    "overflow compaction",
    lambda world: options(world, _overflows_once(world), compaction=SMALL),
    history=("a long story", "and another"),
)


def _grows(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return say("the question", usage=tokens(30, 3))
        if not any(message.stop_reason == "toolUse" for message in responses(world)):
            return call("search", usage=tokens(900, 50))
        return say("done", usage=tokens(60, 2))

    return answer


THRESHOLD = Scenario(
    "threshold compaction in the middle of a turn",
    lambda world: options(
        world,
        _grows(world),
        simple_tool("search", replay="safe"),
        model=scripted_model(context_window=1_000, max_tokens=100),
        compaction=CompactionSettings(reserve_tokens=200, keep_recent_tokens=1),
    ),
)

NAVIGATION = Scenario(
    "navigation with a label",
    lambda world: options(world, _summarizes(world)),
    request=lambda world: NavigationRequest(
        target_id=world.entry_ids()[1], options=NavigateOptions(label="here")
    ),
    history=("first", "second"),
)

SUMMARIZED = Scenario(
    "summarized navigation",
    lambda world: options(world, _summarizes(world)),
    request=lambda world: NavigationRequest(
        target_id=world.entry_ids()[1], options=NavigateOptions(summarize=True)
    ),
    history=("first", "second"),
)

STRUCTURAL: tuple[Scenario, ...] = (MANUAL, OVERFLOW, THRESHOLD, NAVIGATION, SUMMARIZED)
