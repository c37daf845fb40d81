"""Every state of a tool batch, made durable and driven (§3.8, §4.5)."""

from __future__ import annotations

import pytest

from harness.context import BACKGROUND
from harness.execution.tools import CHECKPOINT_NOTE, INTERRUPTED_TOOL
from harness.messages import AgentToolResult, TextContent, ToolResultMessage, text_result
from harness.models.script import say
from harness.operation import values
from harness.operation.payloads import PendingMessage
from harness.operation.state import (
    CallCompleted,
    CallOutcomeReady,
    CallPending,
    CallPlanned,
    ToolBatch,
    ToolCallState,
    ToolsPhase,
)
from harness.settings import ReplayPolicy, ToolExecution
from harness.storage.writes import set_value
from harness.testing.judging import branch, canonical_entry, leftovers
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok
from tests.runtime.tier_a.building import Built
from tests.runtime.tier_b.telling import told


async def results(stage: Stage) -> list[object]:
    """The tool results in the tree."""
    entries = [canonical_entry(entry) for entry in await branch(stage.memory)]
    return [entry for entry in entries if entry[0] == "toolResult"]


class Batched(Built):
    """A run whose response called tools; calls are added in source order."""

    def __init__(self, stage: Stage, *names: str) -> None:
        super().__init__(stage, tools=tuple(dict.fromkeys(names)))
        self.names = names
        self.assistant_id = self.calls(*names)
        self.states: list[ToolCallState] = []

    @property
    def _next(self) -> int:
        return len(self.states)

    def planned(self) -> Batched:
        self.states.append(CallPlanned(source_index=self._next, result_entry_id=self.new_id()))
        return self

    def lost(
        self, replay: ReplayPolicy, *, checkpoint: str | None = None, memo: str | None = None
    ) -> Batched:
        """A call that was under way."""
        index, result = self._next, self.new_id()
        arguments = values.operation_tool_args(self.operation, self.step, index)
        self.writes.append(set_value(arguments, {"stored": True}))
        if checkpoint is not None:
            output = values.pending_tool_output(self.operation, result)
            saved = text_result(checkpoint, details={"n": 1}, terminate=True)
            self.writes.append(set_value(output, saved))
        if memo is not None:
            address = values.operation_tool_memo(self.operation, result, "step")
            self.writes.append(set_value(address, memo))
        self.states.append(CallPending(source_index=index, result_entry_id=result, replay=replay))
        return self

    def result(self, text: str) -> ToolResultMessage:
        index = self._next
        return ToolResultMessage(
            tool_call_id=f"c{index}",
            tool_name=self.names[index],
            content=(TextContent(text=text),),
            is_error=False,
            timestamp=self.now(),
        )

    def ready(self, text: str, *, terminate: bool = False) -> Batched:
        """A call whose outcome is staged."""
        index = self._next
        staged = self.new_id()
        self.writes.append(
            set_value(values.pending_entry(staged), PendingMessage(payload=self.result(text)))
        )
        self.states.append(
            CallOutcomeReady(source_index=index, result_entry_id=staged, terminate=terminate)
        )
        return self

    def completed(self, text: str, *, terminate: bool = False) -> Batched:
        """A call whose result is in the tree."""
        from harness.entries import MessagePayload

        index = self._next
        placed = self.entry(MessagePayload(message=self.result(text), terminate=terminate))
        self.states.append(
            CallCompleted(source_index=index, result_entry_id=placed, terminate=terminate)
        )
        return self

    async def open(self, execution: ToolExecution = "parallel") -> str:
        batch = ToolBatch(
            assistant_entry_id=self.assistant_id,
            configuration=self.configuration,
            turn_id=self.step,
            calls=tuple(self.states),
        )
        state = self.run(ToolsPhase(batch=batch), latest=self.assistant_id, execution=execution)
        return await self.durable(state)


def registered(
    stage: Stage, name: str = "t", *, replay: ReplayPolicy = "never", ends: bool = False
) -> list[ToolCallRequest[None]]:
    """A tool that answers with its name; returns the list of its runs."""
    runs: list[ToolCallRequest[None]] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        runs.append(request)
        return text_result(f"ran {name}", terminate=ends)

    stage.tool(name, work, replay=replay)
    return runs


async def finished(stage: Stage, operation: str) -> None:
    settled = ok(await stage.drive(operation))
    assert settled.outcome.kind == "completed"
    assert await leftovers(stage.memory, set()) == []


async def test_a_planned_call_is_cleared_and_run(stage: Stage) -> None:
    runs = registered(stage)
    stage.script([say("x")])
    await finished(stage, await Batched(stage, "t").planned().open())
    assert len(runs) == 1
    assert told(stage)[0] == "turn_start (recovery)"
    assert told(stage)[1] == "TX set pi.op.tool_args; set pi.op.state tools [pending]"


@pytest.mark.parametrize("checkpoint", [None, "half"])
async def test_a_lost_unsafe_call_is_never_run_again(stage: Stage, checkpoint: str | None) -> None:
    runs = registered(stage)
    stage.script([say("x")])
    await finished(stage, await Batched(stage, "t").lost("never", checkpoint=checkpoint).open())
    assert runs == []
    note = INTERRUPTED_TOOL if checkpoint is None else CHECKPOINT_NOTE + INTERRUPTED_TOOL
    saved = () if checkpoint is None else (("text", checkpoint),)
    assert await results(stage) == [("toolResult", "c0", "t", (*saved, ("text", note)), True)]
    entry = (await branch(stage.memory))[2]
    assert entry.message.details == (None if checkpoint is None else {"n": 1})  # type: ignore[union-attr]
    assert not [line for line in stage.journal if line.startswith(("tool_start", "tool_end"))]


async def test_a_lost_safe_call_runs_again_with_its_arguments_memos_and_id(stage: Stage) -> None:
    runs = registered(stage, replay="safe")
    stage.script([say("x")])
    built = Batched(stage, "t").lost("safe", checkpoint="stale", memo="remembered")
    operation = await built.open()
    driving = stage.drive(operation)
    dropped = stage.gated.park("delete pi.pending.tool_output")
    await dropped.reached()
    assert dropped.described == ("delete pi.pending.tool_output",), "before it runs again"
    dropped.release()
    ok(await driving)
    (run,) = runs
    assert run.arguments == {"stored": True}
    assert run.invocation.invocation_id == built.states[0].result_entry_id
    assert await results(stage) == [("toolResult", "c0", "t", (("text", "ran t"),), False)]
    assert "tool_start t (recovery)" in stage.journal
    assert "tool_end t (recovery)" in stage.journal
    assert await leftovers(stage.memory, set()) == []


async def test_memos_survive_until_the_outcome_is_staged(stage: Stage) -> None:
    seen: list[object] = []

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        seen.append(await request.invocation.get_memo("step"))
        seen.append(await request.invocation.get_memo("none"))
        return text_result("x")

    stage.tool("t", work, replay="safe").script([say("x")])
    operation = await Batched(stage, "t").lost("safe", memo="remembered").open()
    ok(await stage.drive(operation))
    assert seen == ["remembered", None]
    staged = next(line for line in stage.journal if "tools [ready]" in line)
    assert "delete pi.op.tool_memo" in staged


@pytest.mark.parametrize("now", ["gone", "no longer safe"])
async def test_a_safe_call_whose_tool_changed_is_interrupted(stage: Stage, now: str) -> None:
    runs = registered(stage, "other" if now == "gone" else "t")
    stage.script([say("x")])
    built = Batched(stage, "t")
    built.tools = ()  # the configured tools must exist for the next turn
    await finished(stage, await built.lost("safe").open())
    assert runs == []
    assert (await results(stage))[0][-1] is True  # type: ignore[index]


async def test_staged_outcomes_are_placed_without_any_tool(stage: Stage) -> None:
    stage.script([say("x")])
    built = Batched(stage, "a", "b").ready("one").ready("two")
    built.tools = ()
    await finished(stage, await built.open())
    assert [line[3] for line in await results(stage)] == [  # type: ignore[index]
        (("text", "one"),),
        (("text", "two"),),
    ]
    assert not [line for line in stage.journal if line.startswith("tool ")]


async def test_a_later_staged_outcome_waits_for_the_planned_call_before_it(stage: Stage) -> None:
    runs = registered(stage)
    other = registered(stage, "u")
    stage.script([say("x")])
    await finished(stage, await Batched(stage, "t", "u").planned().ready("kept").open())
    assert len(runs) == 1
    assert other == [], "a staged call never runs again"
    assert [line[3] for line in await results(stage)] == [  # type: ignore[index]
        (("text", "ran t"),),
        (("text", "kept"),),
    ]


async def test_a_mixed_suffix_after_a_completed_prefix(stage: Stage) -> None:
    safe, unsafe = registered(stage, "s", replay="safe"), registered(stage, "n")
    stage.script([say("x")])
    built = Batched(stage, "n", "s", "n", "n", "s")
    operation = await (
        built.completed("first").lost("safe").ready("third").lost("never").planned().open()
    )
    await finished(stage, operation)
    assert [line[3][0][1] for line in await results(stage)] == [  # type: ignore[index]
        "first",
        "ran s",
        "third",
        INTERRUPTED_TOOL,
        "ran s",
    ]
    assert len(safe) == 2
    assert unsafe == []


async def test_a_sequential_batch_goes_on_where_it_stood(stage: Stage) -> None:
    runs = registered(stage)
    stage.script([say("x")])
    operation = (
        await Batched(stage, "t", "t", "t")
        .completed("a")
        .lost("never")
        .planned()
        .open("sequential")
    )
    await finished(stage, operation)
    assert len(runs) == 1
    assert [line[-1] for line in await results(stage)] == [False, True, False]  # type: ignore[index]


@pytest.mark.parametrize("last", ["terminates", "does not"])
async def test_the_last_placement_decides_what_follows(stage: Stage, last: str) -> None:
    stage.script([say("x")])
    built = Batched(stage, "a", "b").completed("one", terminate=True)
    built.ready("two", terminate=last == "terminates")
    built.tools = ()
    await finished(stage, await built.open())
    expected = "may_finish" if last == "terminates" else "need_assistant"
    placed = next(line for line in stage.journal if line.startswith("TX entry toolResult"))
    assert placed.endswith(f"checkpoint {expected}")


async def test_an_unknown_tool_is_an_error_result_without_details(stage: Stage) -> None:
    stage.script([say("x")])
    built = Batched(stage, "unknown").planned()
    built.tools = ()
    await finished(stage, await built.open())
    entry = (await branch(stage.memory))[2]
    assert entry.message.is_error  # type: ignore[union-attr]
    assert entry.message.details is None  # type: ignore[union-attr]


async def test_missing_arguments_of_a_safe_call_fault_the_drive(stage: Stage) -> None:
    registered(stage, replay="safe")
    stage.script([say("x")])
    built = Batched(stage, "t").lost("safe")
    built.writes = [
        write for write in built.writes if getattr(write, "namespace", "") != "pi.op.tool_args"
    ]
    operation = await built.open()
    with pytest.raises(Exception, match="arguments of call"):
        await stage.drive(operation)
    assert stage.harness.faulted is not None
    await stage.harness.close(BACKGROUND)
