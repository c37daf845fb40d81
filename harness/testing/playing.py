"""Plays a scenario through as many deaths as a plan names, on any storage, and says what is wrong at the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import msgspec

from harness.context import BACKGROUND, Context
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.operation.results import DriveSettled, DriveWaitingDeferred, LaneExecution
from harness.result import Ok
from harness.runtime.agent_lane import AgentLane
from harness.runtime.drive import DriveOptions
from harness.runtime.harness import AgentHarness
from harness.session.session import MAIN_LANE, Session
from harness.storage.address import Value, value
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import EntryScan, Storage, UsageScan
from harness.storage.writes import set_value
from harness.testing.content import VALUE_TYPES, Content
from harness.testing.crash import CrashStorage, PointKind, Process
from harness.testing.invariants import violations
from harness.testing.judging import (
    EndState,
    Wreck,
    differences,
    invariant_problems,
    read_end,
    read_wreck,
    run_problems,
)
from harness.testing.scenarios import Scenario
from harness.testing.virtual_clock import virtual_environment
from harness.testing.world import UserStep, World

ALL_POINTS: frozenset[PointKind] = frozenset(("before commit", "after commit", "effect"))
COMMITS: frozenset[PointKind] = frozenset(("after commit",))
# Ids of different plays differ, because some backends keep all sessions in one place.
_seeds = itertools.count(1)


class DurableSession(Protocol):
    """Where a scenario's session lives. Each play uses a new one.

    `keeps_frames`: every answered frame survives its process; else the newest may be lost with it.
    """

    keeps_frames: bool

    async def create(self) -> Storage:
        """The storage of a new session."""
        ...

    async def reopen(self) -> Storage:
        """Open that session again although its owner died without closing it."""
        ...


@dataclass(slots=True)
class Played:
    """One play: how each process died, what it left, how everything ended."""

    world: World
    deaths: list[str] = field(default_factory=list[str])
    wrecks: list[Wreck] = field(default_factory=list[Wreck])
    points: list[list[str]] = field(default_factory=list[list[str]])
    end: EndState | None = None
    problems: list[str] = field(default_factory=list[str])

    def judge(self, uninterrupted: EndState) -> list[str]:
        """Everything that is wrong, each line headed by the deaths that led there."""
        assert self.end is not None
        found = [*self.problems, *differences(uninterrupted, self.end, self.wrecks)]
        where = " | ".join(
            f"{death} -> {wreck}" for death, wreck in zip(self.deaths, self._states(), strict=True)
        )
        return [f"{where}: {problem}" for problem in found]

    def _states(self) -> list[str]:
        return [wreck.state for wreck in self.wrecks]


async def play(
    scenario: Scenario,
    durable: DurableSession,
    plan: Sequence[int] = (),
    kinds: frozenset[PointKind] = ALL_POINTS,
    context: Context = BACKGROUND,
) -> Played:
    """Play a scenario; process number n dies at its point number `plan[n]`, the last one lives on.

    Each process accepts and drives with `context`.
    """
    world = World(virtual_environment(next(_seeds)))
    played = Played(world)
    world.operation_id = world.environment.ids.next()
    storage = await durable.create()
    await _new_session(storage)
    if scenario.history:
        await _live_through(scenario, world, storage)
        storage = await durable.reopen()
    life = 0
    while True:
        crash_at = plan[life] if life < len(plan) else None
        process = Process(crash_at, kinds, world.clock)
        await process.live(partial(_life, scenario, world, storage, process, context))
        played.points.append(process.points)
        if process.died_at is None:
            break
        life += 1
        played.deaths.append(process.died_at)
        if not durable.keeps_frames:
            world.audit.owner_died()
        storage = await durable.reopen()
        wreck = await read_wreck(storage) or Wreck("idle", cancelling=False)
        world.lost_tool |= bool(wreck.calls)
        played.wrecks.append(wreck)
        played.problems += await _lost_or_invented(storage, world.audit.content)
    played.end = await read_end(storage)
    played.problems += world.audit.problems
    played.problems += violations(world.audit.content)
    played.problems += await _lost_or_invented(storage, world.audit.content)
    played.problems += await invariant_problems(storage, world.frame_keys())
    played.problems += run_problems(world.runs, world.replay_of, len(played.deaths))
    await storage.close(BACKGROUND)
    return played


async def _lost_or_invented(storage: Storage, committed: Content) -> list[str]:
    """Where the storage does not hold exactly what was committed to it."""
    problems: list[str] = []
    if await storage.scan_entries(EntryScan(), BACKGROUND) != list(committed.entries.values()):
        problems.append("the storage holds other entries than were committed")
    if await storage.scan_usage(UsageScan(), BACKGROUND) != list(committed.usage.values()):
        problems.append("the storage holds another ledger than was committed")
    for namespace, type_ in VALUE_TYPES.items():
        prefix: Value[Any] = value(type_, namespace)
        stored = await storage.scan_values(prefix, BACKGROUND)
        found = {one.address.key: one.value for one in stored}
        wanted = {
            key: committed.get(value(type_, namespace, key)) for key in committed.keys(namespace)
        }
        if found != wanted:
            problems.append(f"{namespace}: {found} is stored, {wanted} was committed")
    return problems


async def _new_session(storage: Storage) -> None:
    if await storage.get_value(values.lane_state(MAIN_LANE), BACKGROUND) is None:
        await storage.commit(
            (
                set_value(values.lane_leaf(MAIN_LANE), None),
                set_value(values.lane_state(MAIN_LANE), IDLE_LANE),
            ),
            BACKGROUND,
        )


async def _live_through(scenario: Scenario, world: World, storage: Storage) -> None:
    """Make the history in a process that nothing befalls."""

    async def life() -> None:
        harness = await _attach(scenario, world, storage, process)
        for text in scenario.history:
            await harness.prompt(text, BACKGROUND)
        await harness.close(BACKGROUND)

    process = Process(None, ALL_POINTS, world.clock)
    await process.live(life)


async def _attach(
    scenario: Scenario, world: World, storage: Storage, process: Process
) -> AgentHarness:
    session = Session(
        CrashStorage(storage, process, world.observe),
        SessionMetadata(id="played", created_at=0),
        world.environment_of(process),
    )
    harness, _ = await AgentHarness.create(session, scenario.options(world), BACKGROUND)
    if scenario.prepare is not None:
        scenario.prepare(world, harness)
    return harness


async def _life(
    scenario: Scenario, world: World, storage: Storage, process: Process, context: Context
) -> None:
    """What every process does: take the operation up where it stands, and bring it to its end."""
    harness = await _attach(scenario, world, storage, process)
    await _accepted(scenario, world, harness, context)
    world.reached.add("accepted")
    for step in scenario.steps:
        lost = step.after_lost_tool and world.lost_tool
        if step.after not in world.answered and (step.after in world.reached or lost):
            await _act(world, harness, step)
    user = asyncio.ensure_future(_user(scenario, world, harness))
    try:
        await _driven(scenario, world, harness, context)
    finally:
        user.cancel()


async def _accepted(scenario: Scenario, world: World, lane: AgentLane, context: Context) -> None:
    """Submit unless an earlier attempt whose answer was lost has arrived (§5.1)."""
    execution = await lane.inspect_execution(BACKGROUND)
    if world.operation_id in _known(execution):
        return
    request = msgspec.structs.replace(scenario.request(world), operation_id=world.operation_id)
    admitted = await lane.accept(request, context)
    assert isinstance(admitted, Ok), admitted


def _known(execution: LaneExecution) -> set[str]:
    known: set[str] = set()
    if execution.current is not None:
        known.add(execution.current.id)
    if execution.last_result is not None:
        known.add(execution.last_result.operation_id)
    return known


async def _act(world: World, lane: AgentLane, step: UserStep) -> None:
    await step.act(world, lane)
    world.answer(step)


async def _user(scenario: Scenario, world: World, lane: AgentLane) -> None:
    for step in scenario.steps:
        await world.until(lambda step=step: step.after in world.reached)
        if step.after not in world.answered:
            await _act(world, lane, step)


async def _driven(scenario: Scenario, world: World, lane: AgentLane, context: Context) -> None:
    options = DriveOptions(world.operation_id, wait_for_retry=True, poll_deferred=scenario.polls)
    while True:
        driven = await lane.drive(options, context)
        assert isinstance(driven, Ok), driven
        if isinstance(driven.value, DriveSettled):
            return
        assert isinstance(driven.value, DriveWaitingDeferred), driven.value
