"""Compaction and navigation: what is written when, and what is told (§3.9, §3.10)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.context import BACKGROUND, Context
from harness.entries import BranchSummaryPayload, CompactionPayload
from harness.messages import AgentToolResult, UserMessage, text_result
from harness.models.script import (
    Gate,
    ScriptedRequest,
    ScriptedResponse,
    call,
    fail,
    say,
    tokens,
)
from harness.models.scripted import scripted_model
from harness.runtime.hooks import (
    BeforeCompaction,
    BeforeNavigation,
    CompactionDecision,
    NavigationDecision,
)
from harness.settings import CompactionSettings
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok
from tests.runtime.tier_b.telling import ACCEPTED, STARTED, answered, asked, ended, told

SMALL = CompactionSettings(keep_recent_tokens=1)


def requests(kind: str, number: int = 1, attempt: int = 1) -> list[str]:
    """Nested requests: each with an intent before it and its cost after it."""
    return [
        f"TX set pi.op.state {kind} requesting {attempt}",
        "request",
        f"TX usage; set pi.op.state {kind} pending {attempt}",
        "usage",
    ] * number


def generating(kind: str, number: int = 1) -> list[str]:
    return [
        f"TX set pi.op.state {kind} ready 1",
        f"TX set pi.op.state {kind} pending 1",
        *requests(kind, number),
    ]


ENDS = "delete pi.op.meta; delete pi.op.state; delete pi.op.preparation; "


def terminal(outcome: str, before: str = "") -> str:
    return f"TX {before}{ENDS}set pi.lane.lastResult {outcome}; set pi.lane.state idle"


COMPACTING = [
    (
        "TX set pi.op.preparation; set pi.op.meta; set pi.op.state compaction deciding; "
        "set pi.lane.state busy"
    ),
    "compaction_start manual",
]


class Talk:
    """A model that answers, and summarizes when asked to; `special` answers by request number."""

    def __init__(self, special: dict[int, ScriptedResponse] | None = None) -> None:
        self.special = special or {}
        self.conversation = 0
        self.summaries = 0

    def __call__(self, request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            self.summaries += 1
            return self.special.get(-self.summaries, say("summary", usage=tokens(2, 1)))
        self.conversation += 1
        return self.special.get(self.conversation, say("noted " * 20))


async def talked(stage: Stage, talk: Talk | None = None) -> list[str]:
    """Two answered prompts; the journal starts after them. Returns the ids of the entries."""
    stage.script(talk or Talk())
    await stage.open(compaction=SMALL)
    await stage.prompt("a")
    await stage.prompt("b")
    stage.journal.clear()
    return [entry.id for entry in stage.memory.state.order]


async def test_a_manual_compaction(stage: Stage) -> None:
    await talked(stage)
    ok(await stage.harness.compact(BACKGROUND))
    published = terminal("completed", "entry compaction; set pi.lane.leaf; ")
    assert told(stage) == [
        *COMPACTING,
        # Two requests: what came before the turn, and the beginning of the turn.
        *generating("compaction", 2),
        published,
        "entry_added compaction",
        "compaction_end completed",
    ]


async def test_a_failed_attempt_is_repeated_from_its_first_request(stage: Stage) -> None:
    await talked(stage, Talk({-2: fail("overloaded", kind="retryable", usage=tokens(1, 0))}))
    ok(await stage.harness.compact(BACKGROUND))
    assert told(stage)[2:] == [
        *generating("compaction", 2),
        "TX set pi.op.state compaction retry_wait 2",
        "retry_scheduled 2",
        "TX set pi.op.state compaction ready 2",
        "TX set pi.op.state compaction pending 2",
        *requests("compaction", 2, attempt=2),
        terminal("completed", "entry compaction; set pi.lane.leaf; "),
        "entry_added compaction",
        "compaction_end completed",
    ]


async def test_a_compaction_that_a_hook_supplies(stage: Stage) -> None:
    await talked(stage)
    supplied = CompactionPayload(
        summary="s", retained_tail=(), tokens_before=1, from_hook=True, usage=tokens(2, 2)
    )

    def supply(event: BeforeCompaction, context: Context) -> CompactionDecision:
        return CompactionDecision(compaction=supplied)

    stage.harness.hooks.on("before_compaction", supply)
    ok(await stage.harness.compact(BACKGROUND))
    assert told(stage) == [
        *COMPACTING,
        terminal("completed", "usage; entry compaction; set pi.lane.leaf; "),
        "usage",
        "entry_added compaction",
        "compaction_end completed",
    ]


async def test_a_declined_compaction(stage: Stage) -> None:
    await talked(stage)
    declined = CompactionDecision(decline=True)
    stage.harness.hooks.on("before_compaction", lambda event, context: declined)
    ok(await stage.harness.compact(BACKGROUND))
    assert told(stage) == [*COMPACTING, terminal("declined"), "compaction_end declined"]


@pytest.mark.parametrize("summary", ["none", "generated", "supplied"])
async def test_a_navigation_is_one_transaction(stage: Stage, summary: str) -> None:
    entries = await talked(stage)
    if summary == "supplied":
        made = BranchSummaryPayload(from_id=None, summary="s", from_hook=True, usage=tokens(1, 1))
        decision = NavigationDecision(summary=made)

        def supply(event: BeforeNavigation, context: Context) -> NavigationDecision:
            return decision

        stage.harness.hooks.on("before_navigation", supply)
    summarized = summary != "none"
    ok(await stage.harness.navigate(entries[1], BACKGROUND, label="here", summarize=summarized))
    preparation = "set pi.op.preparation; " if summarized else ""
    state = "navigation deciding" if summarized else "navigation ready"
    charge = "usage; " if summary == "supplied" else ""
    placed = "entry branch_summary; set pi.lane.leaf; " if summarized else ""
    dropped = ENDS if summarized else ENDS.replace("delete pi.op.preparation; ", "")
    assert told(stage) == [
        f"TX {preparation}set pi.op.meta; set pi.op.state {state}; set pi.lane.state busy",
        "navigation_start",
        *(generating("navigation") if summary == "generated" else []),
        (
            f"TX {charge}set pi.lane.leaf; {placed}set pi.entry.label; {dropped}"
            "set pi.lane.lastResult completed; set pi.lane.state idle"
        ),
        *(["usage"] if charge else []),
        *(["entry_added branch_summary"] if summarized else []),
        "value_update entry_label",
        "navigation_end completed",
    ]


TOO_LONG = fail("prompt is too long", kind="overflow")


def overflowed() -> list[str]:
    return [
        *ACCEPTED,
        *STARTED,
        *asked(),
        "message_start assistant:error",
        "message_end assistant:error",
        (
            "TX entry assistant:error; usage; set pi.lane.leaf; drop pi.pending.assistant_frame; "
            "set pi.op.preparation; set pi.op.state overflow compaction deciding"
        ),
        "entry_added assistant:error",
        "usage",
        "turn_end 0",
        "compaction_start overflow",
    ]


async def test_an_overflow_compacts_and_asks_again(stage: Stage) -> None:
    await talked(stage, Talk({3: TOO_LONG}))
    await stage.prompt("c")
    assert told(stage) == [
        *overflowed(),
        *generating("overflow compaction", told(stage).count("request") - 2),
        "TX entry compaction; set pi.lane.leaf; set pi.op.state checkpoint need_assistant",
        "entry_added compaction",
        "compaction_end completed",
        *asked(),
        *answered("stop", "checkpoint may_finish"),
        "turn_end 0",
        *ended("completed", "pi.op.preparation"),
    ]


async def test_a_declined_overflow_compaction_fails_the_run(stage: Stage) -> None:
    await talked(stage, Talk({3: TOO_LONG}))
    declined = CompactionDecision(decline=True)
    stage.harness.hooks.on("before_compaction", lambda event, context: declined)
    await stage.prompt("c")
    assert told(stage) == [
        *overflowed(),
        "TX set pi.op.state failure_drain compaction_declined",
        "compaction_end declined",
        *ended("failed", "pi.op.preparation"),
    ]


def states(stage: Stage) -> Sequence[str]:
    return [line for line in told(stage) if line.startswith("TX entry assistant:error")]


async def test_a_second_overflow_fails_instead_of_compacting_again(stage: Stage) -> None:
    await talked(stage, Talk({3: TOO_LONG, 4: TOO_LONG}))
    # A tail so long that there would be something to compact once more.
    tail = tuple(UserMessage(content="kept " * 20, timestamp=1) for _ in range(5))
    supplied = CompactionPayload(summary="s", retained_tail=tail, tokens_before=1, from_hook=True)
    decision = CompactionDecision(compaction=supplied)
    stage.harness.hooks.on("before_compaction", lambda event, context: decision)
    outcome = await stage.prompt("c")
    assert outcome.kind == "failed"
    first, second = states(stage)
    assert first.endswith("overflow compaction deciding")
    assert second.endswith("failure_drain context_overflow")


async def test_new_input_after_an_overflow_allows_another_recovery(stage: Stage) -> None:
    gate = Gate()

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await gate.pass_through()
        return text_result("noted " * 20)

    stage.tool("t", work)
    await talked(stage, Talk({3: TOO_LONG, 4: call("t"), 5: TOO_LONG}))
    operation = await stage.accept("c")
    driving = stage.drive(operation)
    await gate.reached()
    gate.open()
    assert ok(await driving).outcome.kind == "completed"
    first, second = states(stage)
    assert first.endswith("overflow compaction deciding")
    assert second.endswith("overflow compaction deciding"), "tool results reset the mark"


async def test_an_early_length_stop_is_an_overflow_and_a_late_one_is_not(stage: Stage) -> None:
    early = say("cut", usage=tokens(5, 10), stop_reason="length")
    await talked(stage, Talk({3: early}))
    await stage.prompt("c")
    assert states(stage)[0].endswith("overflow compaction deciding")
    stage.journal.clear()


async def test_the_threshold_is_looked_at_once_a_boundary(stage: Stage) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        return text_result("found")

    stage.tool("t", work)
    stage.model = scripted_model(context_window=1_000, max_tokens=100)
    talk = Talk({1: call("t", usage=tokens(900, 10)), 2: say("done", usage=tokens(50, 5))})
    stage.script(talk)
    await stage.open(compaction=CompactionSettings(reserve_tokens=200, keep_recent_tokens=1))
    declined = CompactionDecision(decline=True)
    stage.harness.hooks.on("before_compaction", lambda event, context: declined)
    await stage.prompt()
    assert told(stage).count("compaction_start threshold") == 1
    assert [line for line in told(stage) if "threshold" in line or "compaction_end" in line] == [
        "TX set pi.op.preparation; set pi.op.state threshold compaction deciding",
        "compaction_start threshold",
        "compaction_end declined",
    ]
