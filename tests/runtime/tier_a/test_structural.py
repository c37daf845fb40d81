"""Compaction and navigation in each of their states (§3.9, §3.10)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.context import BACKGROUND
from harness.messages import TextContent
from harness.models.script import ScriptedRequest, ScriptedResponse, fail, say, tokens
from harness.operation import values
from harness.operation.payloads import BranchPreparation, CompactionPreparation, FileOperations
from harness.operation.state import (
    RUNNING,
    CheckpointPhase,
    CompactionIntent,
    CompactionPhase,
    CompactionState,
    Deciding,
    Generating,
    NavigationIntent,
    NavigationState,
    NeedAssistant,
    ReadyToCommit,
    StructuralDecision,
    SummaryContext,
    SummaryPending,
    SummaryPhase,
    SummaryReady,
    SummaryRequest,
    SummaryRetryWait,
)
from harness.runtime.hooks import CompactionDecision, NavigationDecision
from harness.settings import CompactionSettings, NormalizedRetryPolicy, StreamOptions
from harness.storage.writes import set_value
from harness.testing.judging import branch, canonical_entry, leftovers
from tests.runtime.stage import Stage, ok
from tests.runtime.tier_a.building import CANCELLED, Built
from tests.runtime.tier_b.telling import told

SETTINGS = CompactionSettings(keep_recent_tokens=1)
KINDS = ("manual", "threshold", "overflow", "navigation")
Decide = Callable[["Structured"], StructuralDecision]


class Structured(Built):
    """A session with an answered prompt, and structural work on it."""

    def __init__(self, stage: Stage, kind: str) -> None:
        super().__init__(stage)
        self.kind = kind
        self.answer = self.assistant(TextContent(text="answered"))
        self.task = self.new_id()
        self.result = self.new_id()
        address = values.operation_preparation(self.operation, self.task)
        self.writes.append(set_value(address, self._preparation()))

    def _preparation(self) -> CompactionPreparation | BranchPreparation:
        if self.kind == "navigation":
            return BranchPreparation(
                messages=(self.user("left"),), file_ops=FileOperations(), total_tokens=1
            )
        return CompactionPreparation(
            messages_to_summarize=(self.user("old"),),
            turn_prefix_messages=(),
            retained_tail=(self.user("kept"),),
            is_split_turn=False,
            tokens_before=9,
            file_ops=FileOperations(),
            settings=SETTINGS,
        )

    def summary(self) -> SummaryContext:
        return SummaryContext(
            task_id=self.task,
            result_entry_id=self.result,
            kind="branch_summary" if self.kind == "navigation" else "compaction",
            configuration=self.configuration,
            stream_options=StreamOptions(),
            retry_policy=NormalizedRetryPolicy(max_attempts=2, base_delay_ms=1_000),
            reason=None if self.kind == "navigation" else self.kind,  # type: ignore[arg-type]
        )

    def deciding(self) -> StructuralDecision:
        return Deciding(task_id=self.task)

    def ready(self) -> StructuralDecision:
        ready = SummaryReady(context=self.summary(), next_attempt=1)
        return Generating(task_id=self.task, generation=ready)

    def lost(self, attempt: int = 1, *, asking: bool = True) -> StructuralDecision:
        """An attempt that was under way, in the middle of a nested request or between two."""
        pending = SummaryPending(
            context=self.summary(),
            attempt=attempt,
            usage_ids=(),
            request=SummaryRequest(index=1, usage_id=self.new_id()) if asking else None,
        )
        return Generating(task_id=self.task, generation=pending)

    def waiting(self) -> StructuralDecision:
        wait = SummaryRetryWait(
            context=self.summary(),
            next_attempt=2,
            not_before=self.now() + 5_000,
            error_message="overloaded",
        )
        return Generating(task_id=self.task, generation=wait)

    async def open(self, decision: StructuralDecision, *, cancelled: bool = False) -> str:
        control = CANCELLED if cancelled else RUNNING
        if self.kind == "manual":
            manual = CompactionState(control=control, structural=decision)
            return await self.durable(manual, intent=CompactionIntent())
        if self.kind == "navigation":
            state = NavigationState(
                control=control,
                target_id=self.prompt,
                summarize=True,
                phase=SummaryPhase(structural=decision),
                label="here",
            )
            intent = NavigationIntent(target_id=self.prompt, summarize=True, label="here")
            return await self.durable(state, intent=intent)
        resume = CheckpointPhase(
            continuation=NeedAssistant(overflow_recovery_used=self.kind == "overflow"),
            trigger_entry_id=self.prompt,
            threshold_checked_trigger_entry_id=self.prompt if self.kind == "threshold" else None,
        )
        phase = CompactionPhase(
            reason="threshold" if self.kind == "threshold" else "overflow",
            structural=decision,
            resume_after=resume,
        )
        run = self.run(phase, control=control, latest=self.answer, compaction=SETTINGS)
        return await self.durable(run)


def answers(stage: Stage) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return say("summary", usage=tokens(3, 1))
        return say("on we go")

    stage.script(answer)


async def kinds_of(stage: Stage) -> list[str]:
    return [str(canonical_entry(entry)[0]) for entry in await branch(stage.memory)]


async def expect_success(stage: Stage, built: Structured, operation: str) -> None:
    settled = ok(await stage.drive(operation, wait=True))
    assert settled.outcome.kind == "completed"
    assert await leftovers(stage.memory, set()) == []
    published = {
        "navigation": ["user", "branch_summary"],
        "manual": ["user", "assistant", "compaction"],
    }.get(built.kind, ["user", "assistant", "compaction", "assistant"])
    assert await kinds_of(stage) == published
    if built.kind == "navigation":
        label = await stage.memory.get_value(values.entry_label(built.prompt), BACKGROUND)
        assert label is not None
        assert label.value == "here"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "decide",
    [
        Structured.deciding,
        Structured.ready,
        Structured.lost,
        lambda built: built.lost(asking=False),
        Structured.waiting,
    ],
    ids=["deciding", "ready", "lost in a request", "lost between requests", "retry wait"],
)
async def test_each_state_goes_on_to_the_published_result(
    stage: Stage, kind: str, decide: Decide
) -> None:
    answers(stage)
    built = Structured(stage, kind)
    decision = decide(built)
    operation = await built.open(decision)
    ran: list[str] = []
    for hook in ("before_compaction", "before_navigation"):
        stage.harness.hooks.on(hook, lambda event, context: ran.append("ran"))
    await expect_success(stage, built, operation)
    assert (ran != []) == isinstance(decision, Deciding), "never once generation is durable"
    starts = [line for line in stage.journal if line.endswith("_start (recovery)")]
    starts += [line for line in stage.journal if line.startswith("compaction_start")]
    assert starts, "resumed structural work says that it starts"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lost_attempt_at_the_cap_fails(stage: Stage, kind: str) -> None:
    answers(stage)
    built = Structured(stage, kind)
    settled = ok(await stage.drive(await built.open(built.lost(2))))
    assert settled.outcome.kind == "failed"
    assert settled.outcome.error.code == "summary_interrupted"
    assert "compaction" not in await kinds_of(stage)
    assert "branch_summary" not in await kinds_of(stage)
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("kind", KINDS)
async def test_a_missing_model_fails_without_an_intent(stage: Stage, kind: str) -> None:
    built = Structured(stage, kind)
    settled = ok(await stage.drive(await built.open(built.ready())))
    assert settled.outcome.kind == "failed"
    assert settled.outcome.error.code == "model_unavailable"
    assert stage.memory.state.usage.keys() == {row for row in stage.memory.state.usage if row}
    assert "request" not in stage.journal


@pytest.mark.parametrize("kind", KINDS)
async def test_failed_attempts_keep_their_cost(stage: Stage, kind: str) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        return fail("no credit", kind="terminal", usage=tokens(5, 0))

    stage.script(answer)
    built = Structured(stage, kind)
    settled = ok(await stage.drive(await built.open(built.ready())))
    assert settled.outcome.kind == "failed"
    stats = await stage.memory.get_stats(BACKGROUND)
    assert stats.usage.total_tokens == 5


@pytest.mark.parametrize("kind", KINDS)
async def test_a_declining_hook(stage: Stage, kind: str) -> None:
    answers(stage)
    built = Structured(stage, kind)
    operation = await built.open(built.deciding())
    declined = NavigationDecision(decline=True), CompactionDecision(decline=True)
    stage.harness.hooks.on("before_navigation", lambda event, context: declined[0])
    stage.harness.hooks.on("before_compaction", lambda event, context: declined[1])
    settled = ok(await stage.drive(operation))
    expected = {"threshold": "completed", "overflow": "failed"}.get(kind, "declined")
    assert settled.outcome.kind == expected
    leaf = stage.lane.projection.leaf_id
    if kind in ("manual", "navigation"):
        assert leaf == built.answer, "nothing moves"
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "decide",
    [Structured.deciding, Structured.ready, Structured.lost, Structured.waiting],
    ids=["deciding", "ready", "lost", "retry wait"],
)
async def test_cancelled_structural_work_is_discarded(
    stage: Stage, kind: str, decide: Decide
) -> None:
    answers(stage)
    built = Structured(stage, kind)
    operation = await built.open(decide(built), cancelled=True)
    settled = ok(await stage.drive(operation))
    assert settled.outcome.kind == "aborted"
    assert "request" not in stage.journal
    assert stage.lane.projection.leaf_id == built.answer
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("target", ["entry", "root"])
async def test_plain_navigation_is_one_transaction(stage: Stage, target: str) -> None:
    stage.script([])
    built = Built(stage)
    built.assistant(TextContent(text="x"))
    goal = built.prompt if target == "entry" else None
    state = NavigationState(control=RUNNING, target_id=goal, summarize=False, phase=ReadyToCommit())
    intent = NavigationIntent(target_id=goal, summarize=False)
    settled = ok(await stage.drive(await built.durable(state, intent=intent)))
    assert settled.outcome.kind == "completed"
    assert settled.outcome.leaf_id == goal
    assert len([line for line in told(stage) if line.startswith("TX")]) == 1


async def test_a_cancelled_plain_navigation_moves_nothing(stage: Stage) -> None:
    stage.script([])
    built = Built(stage)
    answer = built.assistant(TextContent(text="x"))
    state = NavigationState(
        control=CANCELLED, target_id=built.prompt, summarize=False, phase=ReadyToCommit()
    )
    intent = NavigationIntent(target_id=built.prompt, summarize=False)
    settled = ok(await stage.drive(await built.durable(state, intent=intent)))
    assert settled.outcome.kind == "aborted"
    assert stage.lane.projection.leaf_id == answer


@pytest.mark.parametrize("kind", KINDS)
async def test_a_missing_preparation_is_corruption(stage: Stage, kind: str) -> None:
    answers(stage)
    built = Structured(stage, kind)
    built.writes = [
        write for write in built.writes if getattr(write, "namespace", "") != "pi.op.preparation"
    ]
    operation = await built.open(built.deciding())
    stage.harness.hooks.on("before_compaction", lambda event, context: None)
    stage.harness.hooks.on("before_navigation", lambda event, context: None)
    with pytest.raises(Exception, match="preparation"):
        await stage.drive(operation)
    assert stage.harness.faulted is not None
