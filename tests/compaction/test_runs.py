"""Compaction as part of runs: when it starts, when it does not again, and that it comes to an end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import pytest

from harness.compaction.summarize import SYSTEM_PROMPT
from harness.context import BACKGROUND
from harness.entries import CompactionEntry
from harness.messages import AgentToolResult, plain_text, text_result
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
from harness.operation.results import CompactionOutcome, RunOutcome
from harness.result import Ok
from harness.settings import CompactionSettings
from harness.tools.protocol import ToolCallRequest
from tests.compaction.support import text_of
from tests.runtime.stage import Stage


def is_summary(request: ScriptedRequest) -> bool:
    return request.context.system_prompt == SYSTEM_PROMPT


MakeStage: TypeAlias = Callable[..., Stage]


@pytest.fixture
async def staged() -> AsyncIterator[MakeStage]:
    """Makes the test's stage for a script and a window; its commits are audited at the end."""
    made: list[Stage] = []

    def make(script: Script, window: int = 128_000) -> Stage:
        stage = Stage()
        made.append(stage)
        stage.model = scripted_model(context_window=window, max_tokens=min(window, 1_000))
        return stage.script(script)

    yield make
    for stage in made:
        await stage.close()


async def run(stage: Stage, text: str) -> RunOutcome:
    done = await stage.harness.prompt(text, BACKGROUND)
    assert isinstance(done, Ok), done
    assert isinstance(done.value, RunOutcome)
    return done.value


def compactions(stage: Stage) -> list[CompactionEntry]:
    return [e for e in stage.memory.state.order if isinstance(e, CompactionEntry)]


def summaries(stage: Stage) -> list[str]:
    """What was asked to be summarized."""
    assert stage.provider is not None
    return [
        plain_text(request.context.messages[0].content)
        for request in stage.provider.scripted.requests
        if is_summary(request)
    ]


async def test_a_report_from_before_a_compaction_starts_no_other_one(staged: MakeStage) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if is_summary(request):
            return say("summary", usage=tokens(50, 5))
        return say("done", usage=tokens(900 if len(request.context.messages) < 4 else 100, 5))

    stage = staged(answer, window=1_200)
    settings = CompactionSettings(reserve_tokens=200, keep_recent_tokens=6)
    await stage.open(compaction=settings)
    assert (await run(stage, "one")).kind == "completed"
    assert (await run(stage, "two")).kind == "completed"
    compacted = await stage.harness.compact(BACKGROUND)
    assert isinstance(compacted, Ok)
    assert isinstance(compacted.value, CompactionOutcome)
    assert compacted.value.kind == "completed"
    assert compactions(stage)[0].retained_tail, "with its response, and what that reported"
    assert (await run(stage, "three " + text_of(200))).kind == "completed"
    assert len(compactions(stage)) == 1


async def test_default_settings_work_with_a_small_window(staged: MakeStage) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        return say("short") if is_summary(request) else say(text_of(60))

    stage = staged(answer, window=2_048)
    await stage.open()
    for number in range(30):
        assert (await run(stage, f"{number} " + text_of(40))).kind == "completed"
    assert len(compactions(stage)) >= 3


async def test_a_summary_that_does_not_fit_is_asked_for_again_and_every_request_is_billed(
    staged: MakeStage,
) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if not is_summary(request):
            return say(text_of(300), usage=tokens(40, 300))
        if len(plain_text(request.context.messages[0].content)) > 2_000:
            return fail("prompt is too long", kind="overflow", usage=tokens(7, 0))
        return say("summary", usage=tokens(50, 5))

    stage = staged(answer)
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=10))
    for number in range(4):
        await run(stage, f"number {number}")
    compacted = await stage.harness.compact(BACKGROUND)
    assert isinstance(compacted, Ok)
    assert compacted.value.kind == "completed"
    asked = summaries(stage)
    assert len(asked) >= 3
    assert len(stage.memory.state.usage) == 4 + len(asked)


async def test_summaries_that_never_fit_fail_the_compaction_and_not_the_session(
    staged: MakeStage,
) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if is_summary(request):
            return fail("prompt is too long", kind="overflow")
        return say(text_of(300))

    stage = staged(answer)
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=10))
    await run(stage, "one")
    await run(stage, "two")
    compacted = await stage.harness.compact(BACKGROUND)
    assert isinstance(compacted, Ok)
    assert isinstance(compacted.value, CompactionOutcome)
    assert compacted.value.kind == "failed"
    assert compacted.value.error is not None
    assert "prompt is too long" in compacted.value.error.message
    assert 1 < len(summaries(stage)) <= 12
    assert (await run(stage, "three")).kind == "completed"


async def test_a_provider_that_refuses_everything_ends_the_run(staged: MakeStage) -> None:
    refusing = False

    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if is_summary(request):
            return say("summary")
        return fail("prompt is too long", kind="overflow") if refusing else say(text_of(100))

    stage = staged(answer)
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=10))
    await run(stage, "one")
    await run(stage, "two")
    refusing = True
    outcome = await run(stage, "three")
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert outcome.error.code == "context_overflow"
    assert "not even after a compaction" in outcome.error.message
    assert len(compactions(stage)) == 1


async def test_each_batch_may_overflow_once(staged: MakeStage) -> None:
    """Results are new input: the recovery is there again, and the run still ends."""

    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if is_summary(request):
            return say("summary")
        done = len(compactions(stage))
        if len(request.context.messages) > 3:
            return fail("prompt is too long", kind="overflow")
        return call("look") if done < 3 else say("done")

    async def look(request: ToolCallRequest[None]) -> AgentToolResult:
        return text_result(text_of(50))

    stage = staged(answer).tool("look", look)
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=10))
    outcome = await run(stage, "go")
    assert outcome.kind == "completed", outcome.error
    assert len(compactions(stage)) >= 2
