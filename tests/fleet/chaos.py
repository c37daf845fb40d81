"""Random kills under load, and the judgement of what is left: for the suite and for the benchmark."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field

from tests.fleet.processes import FleetOfProcesses, Role
from tests.fleet.user import User, judge_transcript, tool_prompt


@dataclass(slots=True)
class Plan:
    """How much is done and how much is killed. Seconds between kills are drawn from `pause`."""

    kills: int
    sessions: int = 8
    workers: int = 3
    apis: int = 2
    pause: tuple[float, float] = (0.1, 0.6)
    seed: int = 1


@dataclass(slots=True)
class Ledger:
    """What was asked for and what came of it."""

    accepted: dict[str, str] = field(default_factory=dict[str, str])
    receipts: dict[str, str] = field(default_factory=dict[str, str])
    tags: dict[str, str] = field(default_factory=dict[str, str])
    killed: Counter[str] = field(default_factory=Counter[str])


async def play(fleet: FleetOfProcesses, user: User, plan: Plan) -> Ledger:
    """Keep sessions busy while processes are killed and replaced; then wait for every receipt."""
    await asyncio.gather(fleet.have("api", plan.apis), fleet.have("worker", plan.workers))
    ledger = Ledger()
    rng = random.Random(plan.seed)
    over = asyncio.Event()
    sessions = [await user.session() for _ in range(plan.sessions)]
    busy = [
        asyncio.create_task(_keep_busy(user, session, random.Random(rng.random()), over, ledger))
        for session in sessions
    ]
    try:
        await _kill(fleet, plan, rng, ledger)
    finally:
        over.set()
        await asyncio.gather(*busy)
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 1))
    for operation in ledger.accepted:
        ledger.receipts[operation] = (await user.receipt(operation))["outcome"]
    return ledger


async def _keep_busy(
    user: User, session: str, rng: random.Random, over: asyncio.Event, ledger: Ledger
) -> None:
    while not over.is_set():
        operation = user.new_id()
        kind = rng.choice(["text", "slow_never", "slow_safe"])
        prompt = (
            "echo: " + " ".join(f"word{number}" for number in range(rng.randint(5, 40)))
            if kind == "text"
            else tool_prompt(kind, rng.uniform(0.05, 0.5), operation)
        )
        if await user.submit(session, prompt, operation):
            ledger.accepted[operation] = session
            ledger.tags[operation] = kind
            await user.receipt(operation)


async def _kill(fleet: FleetOfProcesses, plan: Plan, rng: random.Random, ledger: Ledger) -> None:
    planned = {"api": plan.apis, "worker": plan.workers}
    starting: set[asyncio.Task[object]] = set()
    for _ in range(plan.kills):
        await asyncio.sleep(rng.uniform(*plan.pause))
        # Workers do the work, so they die more often than the front.
        role: Role = "worker" if rng.random() < 0.75 else "api"
        # A role is whole again before it is hit again: on a slow machine processes start slowly.
        while len(fleet.of(role)) < planned[role]:
            done, starting = await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        await rng.choice(fleet.of(role)).kill()
        ledger.killed[role] += 1
        starting.add(asyncio.create_task(fleet.start(role)))
    await asyncio.gather(*starting)


async def judge(fleet: FleetOfProcesses, user: User, ledger: Ledger) -> None:
    """Every accepted operation is over, none is repeated, none is lost, and the books balance."""
    assert ledger.accepted
    assert set(ledger.receipts) == set(ledger.accepted)
    # A run may fail for want of retries when it is killed before any output again and again.
    assert set(ledger.receipts.values()) <= {"completed", "failed"}, Counter(
        ledger.receipts.values()
    )
    for operation, kind in ledger.tags.items():
        starts = fleet.notes(operation, "start")
        assert len(set(starts)) <= 1, "one call, one invocation"
        if kind == "slow_never":
            assert len(starts) <= 1, f"{operation}: a tool that may not be repeated ran twice"
    for session in set(ledger.accepted.values()):
        entries = await user.entries(session)
        judge_transcript(entries)
        prompts = [e for e in entries if e.get("message", {}).get("role") == "user"]
        expected = sum(owner == session for owner in ledger.accepted.values())
        assert len(prompts) == expected, "each accepted prompt stands once in the transcript"
        await _balance(fleet, session)
    left = await asyncio.to_thread(fleet.rows, "SELECT count(*) FROM laneway.open_operations")
    assert left == [(0,)]
    values = await asyncio.to_thread(
        fleet.rows,
        "SELECT DISTINCT namespace FROM laneway.scalar_values"
        " WHERE namespace LIKE 'pi.op.%' OR namespace LIKE 'pi.pending.%'",
    )
    assert values == []


async def _balance(fleet: FleetOfProcesses, session: str) -> None:
    ((messages, counted),) = await asyncio.to_thread(
        fleet.rows,
        "SELECT message_count, (SELECT count(*) FROM laneway.entries e"
        " WHERE e.session_id = s.id AND e.type = 'message')"
        " FROM laneway.sessions s WHERE s.id = %s",
        session,
    )
    assert messages == counted
