"""The complete admission catalogue of §4.2: at each entry, abort first starts nothing, admission first
hands over the signal and lets the work settle.

`before` parks the commit after which the effect would be admitted; for hooks that follow no commit the
marker itself is parked, which closes the gate before cancellation is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

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
from harness.operation.results import DriveSettled
from harness.runtime.hooks import HookName
from harness.runtime.requests import CompactionRequest, NavigateOptions, NavigationRequest
from harness.settings import CompactionSettings, StreamOptions
from harness.testing.judging import leftovers
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok, settle

HANDLE = DeferredHandle(id="job", provider="scripted", model_id="scripted", api="scripted")
EFFECT = "effect"


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the catalogue: how to get there, and the commit before it."""

    name: str
    before: str
    begin: Callable[[Stage, Gate], Any]
    hook: HookName | None = None
    # What follows when the effect was admitted: the run is aborted unless it was already decided.
    outcome: str = "aborted"


def talks(stage: Stage, gate: Gate) -> None:
    stage.script([steps(Text("a"), At(gate)), say("never")])


def quick(stage: Stage, gate: Gate) -> None:
    stage.script([say("a"), say("never")])


def calls_tool(stage: Stage, gate: Gate) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        stage.journal.append(EFFECT)
        signal = request.context.abort_signal
        assert signal is not None
        await gate.pass_through()
        stage.journal.append(f"signalled {signal.aborted}")
        return text_result("x")

    stage.tool("t", work).script([call("t"), say("never")])


def tool_at_once(stage: Stage, gate: Gate) -> None:
    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        return text_result("x")

    stage.tool("t", work).script([call("t"), say("never")])


def deferred(stage: Stage, gate: Gate) -> None:
    stage.script([steps(Defer(HANDLE)), steps(Text("a"), At(gate))])


def failing(stage: Stage, gate: Gate) -> None:
    stage.script([fail("overloaded", kind="retryable"), say("never")])


def summarizing(stage: Stage, gate: Gate) -> None:
    def answer(request: ScriptedRequest) -> ScriptedResponse:
        if request.context.system_prompt:
            return steps(Text("sum"), At(gate))
        return say("noted " * 20)

    stage.script(answer)


HOOKS = [
    Entry("before_run", "", quick, "before_run"),
    Entry("before_request", "assistant ready 1", quick, "before_request"),
    Entry("transform_context", "assistant pending 1", quick, "transform_context"),
    Entry("before_payload", "assistant pending 1", quick, "before_payload"),
    Entry("after_response", "text_end", quick, "after_response"),
    Entry("before_tool", "tools [planned]", tool_at_once, "before_tool"),
    Entry("before_run_end", "checkpoint may_finish", quick, "before_run_end"),
]


async def operate(stage: Stage, entry: Entry, gate: Gate) -> tuple[str, asyncio.Task[Any]]:
    entry.begin(stage, gate)
    await stage.open()
    operation = await stage.accept()
    return operation, stage.drive(operation, wait=True, poll=True)


def holding(stage: Stage, hook: HookName, gate: Gate) -> None:
    async def hold(event: object, context: object) -> None:
        stage.journal.append(EFFECT)
        await gate.pass_through()

    stage.harness.hooks.on(hook, hold)


async def aborted(driving: asyncio.Task[Any], stage: Stage) -> None:
    settled = ok(await asyncio.wait_for(driving, 10))
    assert isinstance(settled, DriveSettled)
    assert settled.outcome.kind == "aborted"
    assert await leftovers(stage.memory, set()) == []


@pytest.mark.parametrize("entry", HOOKS[1:], ids=lambda entry: entry.name)
async def test_abort_first_runs_no_hook(stage: Stage, entry: Entry) -> None:
    gate = Gate()
    gate.open()
    entry.begin(stage, gate)
    await stage.open()
    assert entry.hook is not None
    holding(stage, entry.hook, gate)
    parked = stage.gated.park(entry.before, durable=True)
    operation = await stage.accept()
    driving = stage.drive(operation)
    await parked.reached()
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    parked.release()
    ok(await aborting)
    await aborted(driving, stage)
    assert EFFECT not in stage.journal


@pytest.mark.parametrize("entry", HOOKS, ids=lambda entry: entry.name)
async def test_admission_first_lets_the_whole_pipeline_finish(stage: Stage, entry: Entry) -> None:
    gate = Gate()
    entry.begin(stage, Gate())
    await stage.open()
    assert entry.hook is not None
    holding(stage, entry.hook, gate)
    second: list[str] = []
    stage.harness.hooks.on(entry.hook, lambda event, context: second.append("ran"))
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    assert not driving.done()
    gate.open()
    await aborted(driving, stage)
    assert second == ["ran"], "one admission covers the pipeline, not each handler"


async def test_abort_first_runs_neither_before_drive_nor_before_run(stage: Stage) -> None:
    quick(stage, Gate())
    await stage.open()
    holding(stage, "before_drive", Gate())
    holding(stage, "before_run", Gate())
    operation = await stage.accept()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    await aborted(stage.drive(operation), stage)
    assert EFFECT not in stage.journal


async def test_an_abort_during_before_drive_keeps_before_run_from_starting(stage: Stage) -> None:
    gate = Gate()
    quick(stage, gate)
    await stage.open()
    holding(stage, "before_drive", gate)
    ran: list[str] = []
    stage.harness.hooks.on("before_run", lambda event, context: ran.append("ran"))
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    marker = stage.gated.park("(cancelling)")
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await marker.reached()
    gate.open()  # before_drive ends while the marker is not durable yet
    await settle()
    marker.release()
    ok(await aborting)
    await aborted(driving, stage)
    assert ran == []


async def test_abort_first_sends_no_request(stage: Stage) -> None:
    quick(stage, Gate())
    await stage.open()
    parked = stage.gated.park("assistant pending 1", durable=True)
    operation = await stage.accept()
    driving = stage.drive(operation)
    await parked.reached()
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    parked.release()
    ok(await aborting)
    await aborted(driving, stage)
    assert "request" not in stage.journal
    assert [line for line in stage.journal if line.startswith("TX entry assistant:aborted; usage")]


async def test_admission_first_gives_the_request_the_signal(stage: Stage) -> None:
    gate = Gate()
    talks(stage, gate)
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    assert stage.provider is not None
    signal = stage.provider.scripted.requests[0].options.signal
    assert not signal.aborted
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    assert signal.aborted
    await aborted(driving, stage)


async def test_abort_first_runs_no_tool(stage: Stage) -> None:
    gate = Gate()
    calls_tool(stage, gate)
    await stage.open()
    parked = stage.gated.park("tools [pending]", durable=True)
    operation = await stage.accept()
    driving = stage.drive(operation)
    await parked.reached()
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    parked.release()
    ok(await aborting)
    await aborted(driving, stage)
    assert EFFECT not in stage.journal
    assert "tool_start t" not in stage.journal
    assert "entry_added toolResult:error" in stage.journal


async def test_admission_first_gives_the_tool_the_signal_and_keeps_its_result(
    stage: Stage,
) -> None:
    gate = Gate()
    calls_tool(stage, gate)
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    gate.open()
    await aborted(driving, stage)
    assert "signalled True" in stage.journal
    assert "entry_added toolResult" in stage.journal


async def test_abort_first_runs_no_after_tool_and_keeps_the_raw_result(stage: Stage) -> None:
    gate = Gate()
    calls_tool(stage, gate)
    await stage.open()
    ran: list[str] = []
    stage.harness.hooks.on("after_tool", lambda event, context: ran.append("ran"))
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    marker = stage.gated.park("(cancelling)")
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await marker.reached()
    gate.open()
    await settle()
    marker.release()
    ok(await aborting)
    await aborted(driving, stage)
    assert ran == []
    assert "entry_added toolResult" in stage.journal


async def test_admission_first_lets_after_tool_transform_the_result(stage: Stage) -> None:
    gate = Gate()
    tool_at_once(stage, gate)
    await stage.open()
    holding(stage, "after_tool", gate)
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    gate.open()
    await aborted(driving, stage)
    assert "entry_added toolResult" in stage.journal


async def test_abort_first_polls_nothing(stage: Stage) -> None:
    gate = Gate()
    deferred(stage, gate)
    await stage.open(stream_options=StreamOptions(deferred=True))
    operation = await stage.accept()
    ok(await stage.drive(operation))
    parked = stage.gated.park("deferred pending 1", durable=True)
    driving = stage.drive(operation, poll=True)
    await parked.reached()
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    parked.release()
    ok(await aborting)
    await aborted(driving, stage)
    assert "poll" not in stage.journal


async def test_admission_first_cancels_the_poll_by_its_signal(stage: Stage) -> None:
    gate = Gate()
    deferred(stage, gate)
    await stage.open(stream_options=StreamOptions(deferred=True))
    operation = await stage.accept()
    ok(await stage.drive(operation))
    driving = stage.drive(operation, poll=True)
    await gate.reached()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    await aborted(driving, stage)
    assert "entry_added assistant:aborted" in stage.journal


async def test_abort_first_starts_no_retry_timer(still: Stage) -> None:
    failing(still, Gate())
    await still.open()
    parked = still.gated.park("retry_wait 2", durable=True)
    operation = await still.accept()
    driving = still.drive(operation, wait=True)
    await parked.reached()
    aborting = asyncio.ensure_future(still.harness.request_abort(operation, BACKGROUND))
    await settle()
    parked.release()
    ok(await aborting)
    await aborted(driving, still)
    assert still.clock.sleeping == 0


async def structural(stage: Stage, gate: Gate, *, navigate: bool = False) -> str:
    """A standalone summary, accepted and not driven; the journal starts there."""
    summarizing(stage, gate)
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=1))
    await stage.prompt("a")
    await stage.prompt("b")
    entries = [entry.id for entry in stage.memory.state.order]
    request = (
        NavigationRequest(target_id=entries[1], options=NavigateOptions(summarize=True))
        if navigate
        else CompactionRequest()
    )
    admitted = ok(await stage.harness.accept(request, BACKGROUND))
    stage.journal.clear()
    return admitted.operation_id


@pytest.mark.parametrize("navigate", [False, True], ids=["compaction", "navigation"])
async def test_abort_first_sends_no_summary_request(stage: Stage, navigate: bool) -> None:
    operation = await structural(stage, Gate(), navigate=navigate)
    parked = stage.gated.park("requesting 1", durable=True)
    driving = stage.drive(operation)
    await parked.reached()
    aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
    await settle()
    parked.release()
    ok(await aborting)
    await aborted(driving, stage)
    assert "request" not in stage.journal


@pytest.mark.parametrize("navigate", [False, True], ids=["compaction", "navigation"])
async def test_admission_first_gives_the_summary_request_the_signal(
    stage: Stage, navigate: bool
) -> None:
    gate = Gate()
    operation = await structural(stage, gate, navigate=navigate)
    driving = stage.drive(operation)
    await gate.reached()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    await aborted(driving, stage)
    # The nested request was paid for: its row stays whatever becomes of the operation.
    assert [line for line in stage.journal if line.startswith("TX usage; ")]


@pytest.mark.parametrize("navigate", [False, True], ids=["compaction", "navigation"])
@pytest.mark.parametrize("first", ["abort", "hook"])
async def test_decision_hooks(stage: Stage, navigate: bool, first: str) -> None:
    operation = await structural(stage, Gate(), navigate=navigate)
    hook: HookName = "before_navigation" if navigate else "before_compaction"
    entered, decided = Gate(), Gate()

    async def enter(event: object, context: object) -> None:
        await entered.pass_through()

    stage.harness.hooks.on("before_drive", enter)
    holding(stage, hook, decided)
    driving = stage.drive(operation)
    await entered.reached()
    if first == "abort":
        marker = stage.gated.park("(cancelling)")
        aborting = asyncio.ensure_future(stage.harness.request_abort(operation, BACKGROUND))
        await marker.reached()
        entered.open()
        await settle()
        marker.release()
        ok(await aborting)
    else:
        entered.open()
        await decided.reached()
        ok(await stage.harness.request_abort(operation, BACKGROUND))
        decided.open()
    await aborted(driving, stage)
    assert (EFFECT in stage.journal) == (first == "hook")
    assert "request" not in stage.journal


async def test_cancelled_deferral_asks_the_provider_once_after_the_marker(stage: Stage) -> None:
    deferred(stage, Gate())
    await stage.open(stream_options=StreamOptions(deferred=True))
    operation = await stage.accept()
    ok(await stage.drive(operation))
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    assert "cancel_deferred" not in stage.journal
    await aborted(stage.drive(operation), stage)
    assert stage.journal.count("cancel_deferred") == 1


async def test_only_the_catalogue_admits() -> None:
    """Nothing but the listed integrations calls `admit` (§4.2)."""
    import re
    from pathlib import Path

    import harness

    root = Path(harness.__file__).parent
    found = {
        f"{path.relative_to(root)}": len(re.findall(r"\.admit\(", path.read_text()))
        for path in root.rglob("*.py")
        if re.search(r"\.admit\(", path.read_text())
    }
    assert found == {
        "runtime/procedures/base.py": 1,  # every hook pipeline
        "runtime/procedures/provider_span.py": 1,  # generations, polls, nested summary requests
        "runtime/procedures/tools.py": 1,  # tool executions
        "runtime/procedures/assistant.py": 1,  # both retry timers
    }
