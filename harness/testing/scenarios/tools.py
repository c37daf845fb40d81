"""Tool batches: parallel and sequential, safe and unsafe, with progress and memos, terminating, truncated."""

from __future__ import annotations

from harness.codec import JsonValue
from harness.messages import AgentToolResult, text_result
from harness.models.script import (
    Call,
    ScriptedResponse,
    by_turn,
    call,
    calls,
    say,
    tokens,
)
from harness.settings import ReplayPolicy
from harness.testing.scenarios.scenario import MakeTool, Scenario, options
from harness.testing.world import World, world_tool
from harness.tools.protocol import FunctionTool, ToolCallRequest


def simple_tool(
    name: str, *, replay: ReplayPolicy = "never", after_another: bool = False, ends: bool = False
) -> MakeTool:
    """A tool that says its name; `after_another` waits until another call's outcome is staged."""

    def make(world: World) -> FunctionTool[None]:
        async def work(request: ToolCallRequest[None]) -> AgentToolResult:
            if after_another:
                await world.until(lambda: world.staged() > 0)
            return text_result(name, terminate=ends)

        return world_tool(world, name, work, replay=replay)

    return make


PARALLEL = Scenario(
    "two parallel tools out of order",
    lambda world: options(
        world,
        by_turn(
            calls(Call("first"), Call("second"), usage=tokens(20, 5)),
            say("both done", usage=tokens(30, 3)),
        ),
        simple_tool("first", after_another=True),
        simple_tool("second"),
    ),
)

MIXED = Scenario(
    "parallel tools, one of them unsafe",
    lambda world: options(
        world,
        by_turn(calls(Call("read"), Call("write"), Call("missing")), say("done")),
        simple_tool("read", replay="safe", after_another=True),
        simple_tool("write"),
    ),
)

SEQUENTIAL = Scenario(
    "tools one after the other",
    lambda world: options(
        world,
        by_turn(calls(Call("first"), Call("second"), Call("first")), say("done")),
        simple_tool("first"),
        simple_tool("second", replay="safe"),
        tool_execution="sequential",
    ),
)

TERMINATING = Scenario(
    "tools that end the run",
    lambda world: options(
        world,
        by_turn(calls(Call("submit"), Call("sign"))),
        simple_tool("submit", replay="safe", ends=True),
        simple_tool("sign", replay="safe", ends=True),
    ),
)


def _unsafe(world: World) -> FunctionTool[None]:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        request.on_update(text_result("1 of 3"), checkpoint=True)
        await world.boundary("delete worked")
        request.on_update(text_result("2 of 3"))
        request.on_update(text_result("3 of 3", details={"files": 3}), checkpoint=True)
        await world.boundary("delete worked more")
        return text_result("3 files deleted", details={"files": 3})

    return world_tool(world, "delete", work)


UNSAFE_TOOL = Scenario(
    "unsafe tool with a progress checkpoint",
    lambda world: options(
        world,
        by_turn(call("delete", {"path": "old"}, text="deleting"), say("cleaned up")),
        _unsafe,
    ),
)


def _memoized(world: World) -> FunctionTool[None]:
    async def step(request: ToolCallRequest[None], name: str) -> JsonValue:
        memo = await request.invocation.get_memo(name)
        if memo is None:
            world.effects[name] += 1
            await world.boundary(f"step {name}")
            memo = f"{name} done"
            await request.invocation.set_memo(name, memo)
        return memo

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        done = [await step(request, name) for name in ("build", "upload")]
        request.on_update(text_result("almost"), checkpoint=True)
        return text_result(", ".join(str(part) for part in done))

    return world_tool(world, "release", work, replay="safe")


SAFE_TOOL = Scenario(
    "safe tool with memos",
    lambda world: options(
        world, by_turn(call("release", {"version": "1.2"}), say("released")), _memoized
    ),
)


def _truncated() -> ScriptedResponse:
    response = calls(Call("first"), Call("second"), usage=tokens(10, 8_192))
    return ScriptedResponse(response.steps, usage=response.usage, stop_reason="length")


TRUNCATED = Scenario(
    "calls at the output limit",
    lambda world: options(
        world,
        by_turn(_truncated(), say("shorter now")),
        simple_tool("first"),
        simple_tool("second"),
    ),
)

TOOLS: tuple[Scenario, ...] = (
    PARALLEL,
    MIXED,
    SEQUENTIAL,
    TERMINATING,
    UNSAFE_TOOL,
    SAFE_TOOL,
    TRUNCATED,
)
