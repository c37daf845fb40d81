"""Runs in which the model talks: plain, failing, deferred, hooked, steered."""

from __future__ import annotations

import msgspec

from harness.context import BACKGROUND, Context
from harness.messages import (
    AgentMessage,
    AgentToolResult,
    AssistantMessage,
    DeferredHandle,
    TextContent,
    UserMessage,
    plain_text,
    text_result,
)
from harness.models.script import (
    At,
    Defer,
    Fail,
    Script,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    by_turn,
    call,
    fail,
    say,
    steps,
    tokens,
)
from harness.runtime.agent_lane import AgentLane
from harness.runtime.harness import AgentHarness
from harness.runtime.hooks import (
    AfterResponse,
    AfterTool,
    BeforeRun,
    BeforeRunEnd,
    BeforeTool,
    ToolDecision,
    ToolPatch,
)
from harness.settings import StreamOptions
from harness.testing.scenarios.scenario import Scenario, options
from harness.testing.world import (
    UserStep,
    World,
    WorldGate,
    responses,
    steer_once,
    world_tool,
)
from harness.tools.protocol import FunctionTool, ToolCallRequest

TEXT_RUN = Scenario(
    "text run",
    lambda world: options(world, by_turn(say("one two three four", deltas=4, usage=tokens(10, 4)))),
)


def _fails_once(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        # Until the failure itself is in the tree, so that nothing hangs on a lost request.
        if not any(message.error_message == "overloaded" for message in responses(world)):
            return fail("overloaded", kind="retryable", after="begun", usage=tokens(10, 1))
        return say("better now", deltas=2, usage=tokens(10, 2))

    return answer


RETRY = Scenario("retry after a provider error", lambda world: options(world, _fails_once(world)))

HANDLE = DeferredHandle(id="job-1", provider="scripted", model_id="scripted", api="scripted")


def _ready_at_the_third_poll(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        deferred = sum(message.stop_reason == "deferred" for message in responses(world))
        if request.handle is None or deferred < 3:
            return steps(Defer(HANDLE), usage=tokens(3, 0))
        return say("worth the wait", deltas=2, usage=tokens(0, 5))

    return answer


DEFERRED = Scenario(
    "deferred with three polls",
    lambda world: options(
        world, _ready_at_the_third_poll(world), stream_options=StreamOptions(deferred=True)
    ),
    polls=True,
)


def _fails_until_steered(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        said = [plain_text(m.content) for m in request.context.messages]
        if "try again" in said:
            return say("rescued")
        return steps(
            Text("begun"), At(WorldGate(world, "about to fail")), Fail("no credit", "terminal")
        )

    return answer


RESCUED = Scenario(
    "failure drain rescued by a steer",
    lambda world: options(world, _fails_until_steered(world)),
    steps=(UserStep("about to fail", lambda world, lane: steer_once(world, lane, "try again")),),
)


def _slow(world: World) -> FunctionTool[None]:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await world.user_is_done("slow began")
        return text_result("slow result")

    return world_tool(world, "slow", work)


STEER = Scenario(
    "steer during a tool",
    lambda world: options(
        world,
        by_turn(call("slow"), say("as you wish", usage=tokens(9, 3)), say("superfluous")),
        _slow,
    ),
    steps=(
        UserStep(
            "slow began",
            lambda world, lane: steer_once(world, lane, "rather this"),
            after_lost_tool=True,
        ),
    ),
)


async def _note_and_follow_up(world: World, lane: AgentLane) -> None:
    if not world.was_noted("seen"):
        await lane.tree.append_custom_entry("seen", {"by": "user"}, BACKGROUND)
    if not world.was_said("and then this"):
        await lane.follow_up("and then this", BACKGROUND)


FOLLOW_UP = Scenario(
    "follow-up and a tree write during a tool",
    lambda world: options(
        world, by_turn(call("slow"), say("first"), say("then"), say("superfluous")), _slow
    ),
    steps=(UserStep("slow began", _note_and_follow_up, after_lost_tool=True),),
)


def _hooks(world: World, harness: AgentHarness) -> None:
    async def before_run(event: BeforeRun, context: Context) -> tuple[AgentMessage, ...]:
        await world.boundary("before_run")
        return (UserMessage(content="injected", timestamp=world.clock.now_ms()),)

    async def after_response(event: AfterResponse, context: Context) -> AssistantMessage:
        await world.boundary("after_response")
        return msgspec.structs.replace(
            event.message, content=(*event.message.content, TextContent(text=" (checked)"))
        )

    async def before_tool(event: BeforeTool, context: Context) -> ToolDecision:
        await world.boundary("before_tool")
        return ToolDecision(args={**event.args, "dry": True})

    async def after_tool(event: AfterTool, context: Context) -> ToolPatch:
        await world.boundary("after_tool")
        return ToolPatch(content=(TextContent(text=f"patched {event.args.get('dry')}"),))

    async def before_run_end(event: BeforeRunEnd, context: Context) -> str | None:
        await world.boundary("before_run_end")
        return None if world.was_said("one more thing") else "one more thing"

    async def before_drive(event: object, context: Context) -> None:
        await world.boundary("before_drive")

    harness.hooks.on("before_drive", before_drive)
    harness.hooks.on("before_run", before_run)
    harness.hooks.on("after_response", after_response)
    harness.hooks.on("before_tool", before_tool)
    harness.hooks.on("after_tool", after_tool)
    harness.hooks.on("before_run_end", before_run_end)


def _look_up(world: World) -> FunctionTool[None]:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        return text_result("found")

    return world_tool(world, "look up", work, replay="safe")


HOOKED = Scenario(
    "every hook of a run",
    lambda world: options(
        world, by_turn(call("look up", {"q": 1}), say("found it"), say("and more")), _look_up
    ),
    prepare=_hooks,
)

RUNS: tuple[Scenario, ...] = (TEXT_RUN, RETRY, DEFERRED, RESCUED, STEER, FOLLOW_UP, HOOKED)
