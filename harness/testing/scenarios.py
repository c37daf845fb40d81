"""The scenario library: what is asked, what the provider and the tools do, and when the user acts (design §14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.codec import JsonValue
from harness.messages import AgentToolResult, text_result
from harness.models.protocol import Model
from harness.models.script import (
    At,
    Call,
    Script,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    by_turn,
    call,
    calls,
    fail,
    say,
    steps,
    tokens,
)
from harness.models.scripted import scripted_model
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.runtime.requests import OperationRequest, PromptRequest
from harness.settings import RetryPolicy
from harness.testing.world import (
    UserStep,
    World,
    WorldGate,
    abort_once,
    registry,
    steer_once,
    world_tool,
)
from harness.tools.protocol import ToolCallRequest


@dataclass(frozen=True, slots=True)
class Scenario:
    """One story. `options` is asked anew in every process; what must outlive one is in the world.

    `history` is what happened in the session before, `prepare` registers hooks, `polls` drives a
    deferred response to its end.
    """

    name: str
    options: Callable[[World], HarnessOptions]
    request: Callable[[World], OperationRequest] = lambda world: PromptRequest(prompt="go")
    steps: tuple[UserStep, ...] = ()
    prepare: Callable[[World, AgentHarness], None] | None = None
    history: tuple[str, ...] = ()
    polls: bool = False


def options(
    world: World,
    script: Script,
    *tools: Callable[[World], object],
    model: Model | None = None,
    max_retries: int = 5,
) -> HarnessOptions:
    """Harness options with a scripted model and world tools."""
    chosen = scripted_model() if model is None else model
    # Any: world tools take no tool context.
    made: tuple[Any, ...] = tuple(make(world) for make in tools)
    return HarnessOptions(
        models=registry(world, script, chosen),
        model=chosen,
        tools=made,
        retry=RetryPolicy(max_retries=max_retries, base_delay_ms=1_000),
    )


# A run that only talks


TEXT_RUN = Scenario(
    "text run",
    lambda world: options(world, by_turn(say("one two three four", deltas=4, usage=tokens(10, 4)))),
)


# A provider that fails once


def _fails_once(world: World) -> Script:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        # Until the failure itself is in the tree, so that the outcome does not hang on a lost request.
        failed = any(
            getattr(message, "error_message", None) == "overloaded" for message in world.messages()
        )
        if not failed:
            return fail("overloaded", kind="retryable", after="begun", usage=tokens(10, 1))
        return say("better now", deltas=2, usage=tokens(10, 2))

    return answer


RETRY = Scenario("retry after a provider error", lambda world: options(world, _fails_once(world)))


# Two tools at once; the first waits until the second is staged


def _first(world: World) -> object:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await world.until(lambda: world.staged() > 0)
        return text_result("first")

    return world_tool(world, "first", work)


def _second(world: World) -> object:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        return text_result("second")

    return world_tool(world, "second", work)


PARALLEL = Scenario(
    "two parallel tools out of order",
    lambda world: options(
        world,
        by_turn(
            calls(Call("first"), Call("second"), usage=tokens(20, 5)),
            say("both done", usage=tokens(30, 3)),
        ),
        _first,
        _second,
    ),
)


# A tool that must not run twice and saves its progress


def _unsafe(world: World) -> object:
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


# A tool that may run again and remembers its steps


def _memoized(world: World) -> object:
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


# The user speaks while a tool works


def _slow(world: World) -> object:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await world.user_is_done("slow began")
        aborted = request.context.abort_signal is not None and request.context.abort_signal.aborted
        return text_result("stopped early" if aborted else "slow result")

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


# The user aborts


def _held_stream(world: World) -> Script:
    return by_turn(
        steps(
            Text("begun"), At(WorldGate(world, "stream held")), Text("ended"), usage=tokens(10, 9)
        )
    )


ABORT_STREAM = Scenario(
    "abort during the stream",
    lambda world: options(world, _held_stream(world)),
    steps=(UserStep("stream held", abort_once),),
)

ABORT_TOOL = Scenario(
    "abort during a tool",
    lambda world: options(
        world, by_turn(call("slow", usage=tokens(5, 5)), say("never said")), _slow
    ),
    steps=(UserStep("slow began", abort_once, after_lost_tool=True),),
)

SCENARIOS: tuple[Scenario, ...] = (
    TEXT_RUN,
    RETRY,
    PARALLEL,
    UNSAFE_TOOL,
    SAFE_TOOL,
    STEER,
    ABORT_STREAM,
    ABORT_TOOL,
)
