"""Calls that are repeated, or come twice at once, take effect once: for every call that makes something."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import pytest

from harness.context import BACKGROUND, Context
from harness.errors import HarnessFault, StorageError
from harness.messages import AgentToolResult, UserMessage, text_result
from harness.models.script import Gate, call, say
from harness.operation.state import RunState
from harness.runtime.harness import AgentHarness
from harness.session.once import Once, Superseded, once_at
from harness.settings import CompactionSettings
from harness.storage.address import value
from harness.storage.protocol import EntryScan, UsageScan
from harness.storage.writes import set_value
from harness.testing.judging import canonical_entry
from harness.tools.protocol import ToolCallRequest
from harness.usage import Usage
from tests.runtime.stage import Stage, err, ok, settle

Make: TypeAlias = Callable[[AgentHarness, Once], Awaitable[str]]
MARK = value(str, "app.requests", "one")


async def steer(harness: AgentHarness, once: Once) -> str:
    return ok(await harness.steer("said", BACKGROUND, once=once)).entry_id


async def follow_up(harness: AgentHarness, once: Once) -> str:
    return ok(await harness.follow_up("said", BACKGROUND, once=once)).entry_id


async def next_run(harness: AgentHarness, once: Once) -> str:
    return ok(await harness.next_run("said", BACKGROUND, once=once)).entry_id


async def message(harness: AgentHarness, once: Once) -> str:
    said = UserMessage(content="said", timestamp=1)
    return await harness.tree.append_message(said, BACKGROUND, once=once)


async def custom(harness: AgentHarness, once: Once) -> str:
    return await harness.tree.append_custom_entry("said", None, BACKGROUND, once=once)


async def usage(harness: AgentHarness, once: Once) -> str:
    return ok(await harness.record_usage(Usage(input=1), BACKGROUND, once=once))


async def lane(harness: AgentHarness, once: Once) -> str:
    return ok(await harness.create_lane("side", None, BACKGROUND, once=once)).name


DURING_A_RUN = [steer, follow_up, next_run, message, custom, usage, lane]
WHEN_IDLE = [next_run, message, custom, usage, lane]


async def made(stage: Stage) -> int:
    """How many things there are that a call of these can have made."""
    entries = await stage.memory.scan_entries(EntryScan(), BACKGROUND)
    said = [entry for entry in entries if "said" in canonical_entry(entry)]
    rows = [row for row in await stage.memory.scan_usage(UsageScan(), BACKGROUND) if row.adjustment]
    projection = stage.lane.projection
    queued = list(projection.state.pending_next_run)
    if projection.operation is not None and isinstance(projection.operation.state, RunState):
        inbox = projection.operation.state.inbox
        queued += [*inbox.steer, *inbox.follow_up, *inbox.writes]
    lanes = [info for info in await stage.harness.lanes(BACKGROUND) if info.name != "main"]
    return len(said) + len(rows) + len(queued) + len(lanes)


async def held_run(stage: Stage, gate: Gate) -> asyncio.Task[object]:
    """A run that stands in the middle of a tool."""

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        await gate.pass_through()
        return text_result("x")

    stage.tool("t", work).script([call("t"), *[say("done")] * 5])
    await stage.open()
    driving = stage.drive(await stage.accept())
    await gate.reached()
    return driving


@pytest.mark.parametrize("make", DURING_A_RUN, ids=lambda make: make.__name__)
async def test_two_at_once_during_a_run(stage: Stage, make: Make) -> None:
    gate = Gate()
    driving = await held_run(stage, gate)
    once = once_at(stage.harness.tree, MARK)
    first, second = await asyncio.gather(make(stage.harness, once), make(stage.harness, once))
    assert first == second
    assert await made(stage) == 1
    gate.open()
    await driving
    # Also when what was made has long found its place.
    assert await make(stage.harness, once) == first
    assert await made(stage) == 1


@pytest.mark.parametrize("make", WHEN_IDLE, ids=lambda make: make.__name__)
async def test_the_answer_is_there_after_a_crash(stage: Stage, make: Make) -> None:
    await stage.open()
    first = await make(stage.harness, once_at(stage.harness.tree, MARK))
    await stage.reopen()
    again = once_at(stage.harness.tree, MARK)
    assert await make(stage.harness, again) == first
    assert await made(stage) == 1
    # Another mark is another call.
    if make is not lane:
        other = once_at(stage.harness.tree, value(str, "app.requests", "two"))
        assert await make(stage.harness, other) != first
        assert await made(stage) == 2


@pytest.mark.parametrize("durable", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("make", WHEN_IDLE, ids=lambda make: make.__name__)
async def test_a_crash_at_the_commit_leaves_both_or_neither(
    stage: Stage, make: Make, durable: bool
) -> None:
    await stage.open()
    commit = stage.gated.park(lambda described: True, durable=durable)
    dying = asyncio.ensure_future(make(stage.harness, once_at(stage.harness.tree, MARK)))
    await commit.reached()
    commit.fail(StorageError("died"))
    with pytest.raises(HarnessFault):
        await dying
    await stage.reopen()
    assert await made(stage) == int(durable)
    noted = await stage.harness.tree.get_value(MARK, BACKGROUND)
    assert (noted is not None) == durable
    first = await make(stage.harness, once_at(stage.harness.tree, MARK))
    assert await made(stage) == 1
    assert noted is None or noted.value == first


@pytest.mark.parametrize("make", [steer, follow_up, next_run, message])
async def test_what_was_taken_back_is_not_queued_again(stage: Stage, make: Make) -> None:
    gate = Gate()
    driving = await held_run(stage, gate)
    once = once_at(stage.harness.tree, MARK)
    first = await make(stage.harness, once)
    assert ok(await stage.harness.cancel_queued(first, BACKGROUND)).kind == "cancelled"
    assert await make(stage.harness, once) == first
    assert await made(stage) == 0
    gate.open()
    await driving


async def test_what_an_abort_drained_is_not_queued_for_the_next_run(stage: Stage) -> None:
    gate = Gate()
    driving = await held_run(stage, gate)
    once = once_at(stage.harness.tree, MARK)
    first = await steer(stage.harness, once)
    ok(await stage.harness.abort(BACKGROUND))
    gate.open()
    await driving
    operation = await stage.accept("next")
    assert await steer(stage.harness, once) == first
    assert await made(stage) == 0
    await stage.drive(operation)


async def test_a_refused_call_may_be_repeated_and_then_succeed(stage: Stage) -> None:
    stage.script([say("done")] * 3)
    await stage.open()
    once = once_at(stage.harness.tree, MARK)
    for _ in range(2):
        assert err(await stage.harness.steer("said", BACKGROUND, once=once)).code == "NoActiveRun"
    operation = await stage.accept()
    first = await steer(stage.harness, once)
    await stage.drive(operation)
    # The run is over; it would be refused again if it were new.
    assert await steer(stage.harness, once) == first
    assert await made(stage) == 1


async def test_an_append_that_waits_twice_is_appended_once(stage: Stage) -> None:
    stage.script([say("one " * 50), say("two " * 50), say("summary")])
    await stage.open(compaction=CompactionSettings(keep_recent_tokens=1))
    await stage.prompt("first")
    await stage.prompt("second")
    parked = stage.gated.park("pi.lane.lastResult")
    compacting = asyncio.ensure_future(stage.harness.compact(BACKGROUND))
    await parked.reached()
    once = once_at(stage.harness.tree, MARK)
    waiting = [asyncio.ensure_future(custom(stage.harness, once)) for _ in range(2)]
    await settle()
    assert not any(each.done() for each in waiting)
    parked.release()
    await compacting
    first, second = [await each for each in waiting]
    assert first == second
    assert await made(stage) == 1


@pytest.mark.parametrize("make", WHEN_IDLE, ids=lambda make: make.__name__)
async def test_a_call_that_was_overtaken_does_nothing_and_no_harm(stage: Stage, make: Make) -> None:
    await stage.open()

    async def overtaken(context: Context) -> str | None:
        raise Superseded

    late = Once(overtaken, lambda made_id: set_value(MARK, made_id))
    with pytest.raises(Superseded):
        await make(stage.harness, late)
    assert stage.harness.faulted is None
    assert await made(stage) == 0
    await make(stage.harness, once_at(stage.harness.tree, MARK))
    assert await made(stage) == 1
