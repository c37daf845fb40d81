"""Attachment restores the small projection and nothing else; broken projections fault it (§3.3, §4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest

from harness.context import BACKGROUND, Context
from harness.entries import Entry
from harness.errors import HarnessFault
from harness.models.script import say
from harness.operation import values
from harness.operation.lane_state import LaneState
from harness.operation.results import OpenOperation
from harness.operation.state import (
    AssistantPhase,
    CompactionIntent,
    GenerationPending,
    StartingPhase,
)
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.session.session import MAIN_LANE, Session
from harness.storage.address import Value, ValueList
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import BranchScan, ListElement, ListRead, StoredValue
from harness.storage.writes import delete_value, set_value
from harness.testing.decorated import StorageDecorator
from tests.runtime.stage import Stage, ok
from tests.runtime.tier_a.building import CANCELLED, Built

T = TypeVar("T")


class ReadLog(StorageDecorator):
    """Writes down what is read."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.memory)
        self.reads: list[str] = []

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        self.reads.append("entries")
        return await super().get_entries(ids, context)

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        self.reads.append(address.namespace)
        return await super().get_value(address, context)

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        self.reads.append(f"scan {prefix.namespace}")
        return await super().scan_values(prefix, context)

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        self.reads.append(f"list {address.namespace}")
        return await super().read_list(address, options, context)

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        self.reads.append(f"branch {query.stop_at_type}")
        return await super().scan_branch(query, context)


def options(stage: Stage) -> HarnessOptions:
    return HarnessOptions(models=stage.registry, model=stage.model)


async def attach(stage: Stage, log: ReadLog) -> tuple[AgentHarness, list[OpenOperation]]:
    session = Session(log, SessionMetadata(id="s", created_at=0), stage.environment)
    return await AgentHarness.create(session, options(stage), BACKGROUND)


async def left_open(stage: Stage, *, cancelled: bool = False) -> Built:
    """A session whose process died in a request."""
    built = Built(stage)
    stage.script([say("x")])
    generation = GenerationPending(
        context=built.context(),
        attempt=1,
        response_entry_id=built.new_id(),
        usage_id=built.new_id(),
        intended_output_limit=1,
        context_window=1,
    )
    phase = AssistantPhase(generation=generation)
    state = built.run(phase, control=CANCELLED) if cancelled else built.run(phase)
    await built.durable(state)
    await stage.harness.close(BACKGROUND)
    stage.memory = type(stage.memory)(stage.clock, stage.memory.state)
    return built


async def test_it_reads_point_values_only(stage: Stage) -> None:
    await left_open(stage)
    log = ReadLog(stage)
    harness, _ = await attach(stage, log)
    assert [read for read in log.reads if not read.startswith("pi.lane.config")] == [
        "scan pi.lane.leaf",
        "pi.lane.leaf",
        "pi.lane.state",
        "pi.lane.lastResult",
        "pi.op.meta",
        "pi.op.state",
    ]
    await harness.close(BACKGROUND)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_inventory_and_nothing_started(stage: Stage, cancelled: bool) -> None:
    built = await left_open(stage, cancelled=cancelled)
    stage.registry.unregister(stage.model.identity)  # identities are not resolved
    harness, inventory = await attach(stage, ReadLog(stage))
    (item,) = inventory
    assert (item.lane, item.operation_id, item.kind) == (MAIN_LANE, built.operation, "run")
    assert item.aborting == cancelled
    execution = await harness.inspect_execution(BACKGROUND)
    assert execution.current is not None
    assert execution.current.status == ("aborting" if cancelled else "open")
    assert execution.current.captured_model == stage.model.identity
    assert "request" not in stage.journal
    await harness.close(BACKGROUND)


async def test_a_watch_reads_one_bounded_branch_and_what_the_state_names(stage: Stage) -> None:
    await left_open(stage)
    log = ReadLog(stage)
    harness, _ = await attach(stage, log)
    log.reads.clear()
    snapshot = (await harness.watch(BACKGROUND)).snapshot
    assert log.reads == ["branch compaction", "list pi.pending.assistant_frame"]
    assert snapshot.operation is not None
    assert snapshot.operation.streaming_message is None, "a missing frame list is legal"
    await harness.close(BACKGROUND)


async def test_an_idle_lane_is_not_in_the_inventory(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    await stage.prompt()
    await stage.harness.close(BACKGROUND)
    stage.memory = type(stage.memory)(stage.clock, stage.memory.state)
    harness, inventory = await attach(stage, ReadLog(stage))
    assert inventory == []
    await harness.close(BACKGROUND)


@pytest.mark.parametrize(
    "missing", ["pi.lane.leaf", "pi.lane.config", "pi.lane.state", "pi.op.meta", "pi.op.state"]
)
async def test_a_missing_value_faults(stage: Stage, missing: str) -> None:
    built = await left_open(stage)
    if missing == "pi.lane.config":
        # Only an unconfigured main is seeded; another lane without configuration is corrupt.
        await stage.memory.commit(
            (
                set_value(values.lane_leaf("side"), None),
                set_value(
                    values.lane_state("side"),
                    LaneState(current_operation_id=None, pending_next_run=()),
                ),
            ),
            BACKGROUND,
        )
    else:
        address = {
            "pi.lane.leaf": values.lane_leaf(MAIN_LANE),
            "pi.lane.state": values.lane_state(MAIN_LANE),
            "pi.op.meta": values.operation_meta(built.operation),
            "pi.op.state": values.operation_state(built.operation),
        }[missing]
        await stage.memory.commit((delete_value(address),), BACKGROUND)
    with pytest.raises(HarnessFault):
        await attach(stage, ReadLog(stage))


async def test_contradictory_values_fault(stage: Stage) -> None:
    built = Built(stage)
    stage.script([])
    with pytest.raises(HarnessFault, match="another kind"):
        await built.durable(built.run(StartingPhase()), intent=CompactionIntent())


async def test_the_last_result_never_decides_what_an_open_operation_does(stage: Stage) -> None:
    stage.script([say("one"), say("two")])
    await stage.open()
    await stage.prompt("first")
    operation = await stage.accept("second")
    await stage.memory.commit((delete_value(values.lane_last_result(MAIN_LANE)),), BACKGROUND)
    stage.lane.projection = await stage.restored()
    await stage.reopen()
    assert ok(await stage.drive(operation)).outcome.kind == "completed"
