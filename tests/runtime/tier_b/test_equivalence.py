"""A convenience call and the primitives it composes leave the same bytes and tell the same story (§9.1 26)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.codec import encode
from harness.context import BACKGROUND
from harness.messages import AgentToolResult, DeferredHandle, text_result
from harness.models.script import (
    At,
    Defer,
    Gate,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    call,
    fail,
    say,
    steps,
)
from harness.operation.results import DriveWaitingDeferred, DriveWaitingRetry
from harness.runtime.drive import DriveOptions
from harness.runtime.requests import (
    CompactionRequest,
    NavigateOptions,
    NavigationRequest,
    OperationRequest,
    PromptRequest,
    SkillRequest,
)
from harness.runtime.resources import Resources, Skill
from harness.settings import CompactionSettings, StreamOptions
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok, settle

HANDLE = DeferredHandle(id="job", provider="scripted", model_id="scripted", api="scripted")
Way = Callable[[Stage], Awaitable[Any]]


async def look(request: ToolCallRequest[None]) -> AgentToolResult:
    return text_result("found")


async def primitives(stage: Stage, request: OperationRequest) -> None:
    """What a scheduler does: accept, drive, wait where it is told to, drive again."""
    operation = ok(await stage.harness.accept(request, BACKGROUND)).operation_id
    while True:
        driven = ok(await stage.harness.drive(DriveOptions(operation), BACKGROUND))
        match driven:
            case DriveWaitingRetry(not_before=due):
                await stage.clock.sleep((due - stage.clock.now_ms()) / 1_000)
            case _:
                return


async def durable(stage: Stage) -> bytes:
    """Everything that is stored."""
    state = stage.memory.state
    return encode(
        {
            "entries": state.order,
            "usage": list(state.usage.values()),
            "values": {
                namespace: sorted(
                    (key, seq, encode(stored).decode()) for key, (seq, stored) in held.items()
                )
                for namespace, held in sorted(state.values.items())
                if held
            },
            "lists": sorted(str(key) for key in state.lists),
            "next": state.next_seq,
        }
    )


async def both(prepare: Way, convenience: Way, explicit: Way, **options: Any) -> None:
    seen: list[tuple[bytes, list[str]]] = []
    for way in (convenience, explicit):
        stage = Stage()
        stage.tool("look", look)
        await prepare(stage)
        await stage.open(**options)
        await history(stage)
        stage.journal.clear()
        await way(stage)
        await settle()
        seen.append((await durable(stage), list(stage.journal)))
        await stage.close()
    assert seen[0][0] == seen[1][0]
    assert seen[0][1] == seen[1][1]


async def history(stage: Stage) -> None:
    for text in ("a", "b"):
        operation = ok(await stage.harness.accept(PromptRequest(prompt=text), BACKGROUND))
        ok(await stage.harness.drive(DriveOptions(operation.operation_id), BACKGROUND))


def model(stage: Stage) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return say("summary")
        return {
            2: call("look"),
            3: fail("overloaded", kind="retryable"),
        }.get(request.index, say("noted " * 10))

    stage.script(answer)


async def scripted(stage: Stage) -> None:
    model(stage)


SKILL = Skill(name="tidy", description="tidies", content="Tidy up.")


@pytest.mark.parametrize(
    ("convenience", "request_of"),
    [
        (
            lambda stage: stage.harness.prompt("go", BACKGROUND),
            lambda stage: PromptRequest(prompt="go"),
        ),
        (
            lambda stage: stage.harness.skill("tidy", BACKGROUND),
            lambda stage: SkillRequest(name="tidy"),
        ),
        (
            lambda stage: stage.harness.compact(BACKGROUND),
            lambda stage: CompactionRequest(),
        ),
        (
            lambda stage: stage.harness.navigate(first(stage), BACKGROUND, label="l"),
            lambda stage: NavigationRequest(
                target_id=first(stage), options=NavigateOptions(label="l")
            ),
        ),
        (
            lambda stage: stage.harness.navigate(first(stage), BACKGROUND, summarize=True),
            lambda stage: NavigationRequest(
                target_id=first(stage), options=NavigateOptions(summarize=True)
            ),
        ),
    ],
    ids=["prompt", "skill", "compact", "navigate", "navigate with a summary"],
)
async def test_accept_and_drive(
    convenience: Way, request_of: Callable[[Stage], OperationRequest]
) -> None:
    await both(
        scripted,
        convenience,
        lambda stage: primitives(stage, request_of(stage)),
        compaction=CompactionSettings(keep_recent_tokens=1),
        resources=Resources(skills=(SKILL,)),
    )


def first(stage: Stage) -> str:
    return stage.memory.state.order[0].id


async def test_abort() -> None:
    gates: dict[int, Gate] = {}

    async def prepare(stage: Stage) -> None:
        gate = gates[id(stage)] = Gate()

        def answer(request: ScriptedRequest) -> ScriptedResponse:
            return steps(Text("begun"), At(gate)) if request.index == 2 else say("noted")

        stage.script(answer)

    async def running(stage: Stage) -> tuple[str, asyncio.Task[Any]]:
        operation = await stage.accept()
        driving = stage.drive(operation)
        await gates[id(stage)].reached()
        await settle()
        return operation, driving

    async def convenience(stage: Stage) -> None:
        _, driving = await running(stage)
        ok(await stage.harness.abort(BACKGROUND))
        ok(await driving)

    async def explicit(stage: Stage) -> None:
        operation, driving = await running(stage)
        ok(await stage.harness.request_abort(operation, BACKGROUND))
        ok(await driving)

    await both(prepare, convenience, explicit)


async def test_resume_with_its_permit() -> None:
    async def prepare(stage: Stage) -> None:
        def answer(request: ScriptedRequest) -> ScriptedResponse:
            if request.handle is not None:
                return say("ready")
            return steps(Defer(HANDLE)) if request.index == 2 else say("noted")

        stage.script(answer)

    async def suspended(stage: Stage) -> str:
        operation = await stage.accept()
        assert isinstance(ok(await stage.drive(operation)), DriveWaitingDeferred)
        stage.journal.clear()
        return operation

    async def convenience(stage: Stage) -> None:
        await suspended(stage)
        ok(await stage.harness.resume(BACKGROUND))
        # The application's own call is the one thing that is reported besides.
        assert stage.journal.pop(0) == "run_resume"

    async def explicit(stage: Stage) -> None:
        operation = await suspended(stage)
        ok(await stage.drive(operation, poll=True, wait=True))

    await both(prepare, convenience, explicit, stream_options=StreamOptions(deferred=True))
