"""Operations that the user cancels: before they start, in a stream, in a tool, in a poll, in a summary."""

from __future__ import annotations

from harness.context import BACKGROUND
from harness.messages import AgentToolResult, text_result
from harness.models.script import (
    At,
    Call,
    Defer,
    Script,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    by_turn,
    call,
    calls,
    say,
    steps,
    tokens,
)
from harness.runtime.agent_lane import AgentLane
from harness.runtime.requests import CompactionRequest
from harness.settings import CompactionSettings, StreamOptions
from harness.testing.scenarios.runs import HANDLE
from harness.testing.scenarios.scenario import Scenario, options
from harness.testing.scenarios.tools import simple_tool
from harness.testing.world import UserStep, World, WorldGate, abort_once, steer_once, world_tool
from harness.tools.protocol import FunctionTool, ToolCallRequest

BEFORE_DRIVE = Scenario(
    "abort before the first drive",
    lambda world: options(world, by_turn(say("never said"))),
    steps=(UserStep("accepted", abort_once),),
)


def _held_stream(world: World) -> Script:
    return by_turn(
        steps(
            Text("begun"), At(WorldGate(world, "stream held")), Text("ended"), usage=tokens(10, 9)
        )
    )


IN_STREAM = Scenario(
    "abort during the stream",
    lambda world: options(world, _held_stream(world)),
    steps=(UserStep("stream held", abort_once),),
)


def _slow(world: World) -> FunctionTool[None]:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await world.user_is_done("slow began")
        signal = request.context.abort_signal
        assert signal is not None
        await signal.wait()
        return text_result("stopped early")

    return world_tool(world, "slow", work)


IN_TOOL = Scenario(
    "abort during a tool",
    lambda world: options(
        world, by_turn(call("slow", usage=tokens(5, 5)), say("never said")), _slow
    ),
    steps=(UserStep("slow began", abort_once, after_lost_tool=True),),
)


async def _write_steer_abort(world: World, lane: AgentLane) -> None:
    if not world.was_noted("kept"):
        await lane.tree.append_custom_entry("kept", {"by": "user"}, BACKGROUND)
    await steer_once(world, lane, "drained")
    await abort_once(world, lane)


WITH_QUEUES = Scenario(
    "abort with a queued steer and a tree write",
    lambda world: options(
        world,
        by_turn(calls(Call("slow"), Call("other")), say("never said")),
        _slow,
        simple_tool("other"),
        tool_execution="sequential",
    ),
    steps=(UserStep("slow began", _write_steer_abort, after_lost_tool=True),),
)


def _held_poll(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.handle is None:
            return steps(Defer(HANDLE))
        return steps(Text("part"), At(WorldGate(world, "poll held")), Text("rest"))

    return answer


IN_POLL = Scenario(
    "abort during a poll",
    lambda world: options(world, _held_poll(world), stream_options=StreamOptions(deferred=True)),
    steps=(UserStep("poll held", abort_once),),
    polls=True,
)


def _held_summary(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return steps(Text("sum"), At(WorldGate(world, "summary held")), Text("mary"))
        return say("noted " * 40)

    return answer


IN_SUMMARY = Scenario(
    "abort during a compaction",
    lambda world: options(
        world, _held_summary(world), compaction=CompactionSettings(keep_recent_tokens=10)
    ),
    request=lambda world: CompactionRequest(),
    history=("a long story", "and another"),
    steps=(UserStep("summary held", abort_once),),
)

CANCELLED: tuple[Scenario, ...] = (
    BEFORE_DRIVE,
    IN_STREAM,
    IN_TOOL,
    WITH_QUEUES,
    IN_POLL,
    IN_SUMMARY,
)
