"""What does not end when it is told to keeps neither its session nor its host, and what it says later goes nowhere."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from harness.context import Context
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import CreateLane, RequestAbort
from workers.host import SessionHost

STUCK = ["stubborn", "threaded"]


@pytest.fixture(autouse=True)
def _released() -> Any:
    """A thread that waits at a gate would keep the test process."""
    yield
    for gate in GATES.values():
        gate.thread_release.set()
        gate.release.set()


async def _let_go(name: str) -> None:
    """Let the tool end, and wait for it where it can still be heard of."""
    gate = GATES[name]
    gate.thread_release.set()
    gate.release.set()
    for _ in range(20):
        await asyncio.sleep(0)


async def _interrupted(fleet: Fleet, session: str) -> None:
    """The one tool result says that nobody knows, and nothing came later."""
    results = [text for text in await fleet.texts(session) if '"toolResult"' in text]
    assert len(results) == 1
    assert "interrupted" in results[0]
    assert '"isError":true' in results[0]
    assert "too late" not in results[0]


@pytest.mark.parametrize("tool", STUCK)
async def test_an_abort_does_not_wait_for_ever(fleet: Fleet, tool: str) -> None:
    worker = await fleet.worker(abort_seconds=0.05)
    session = await fleet.session()
    await fleet.ok(worker, session, CreateLane(name="side"))
    beside = await fleet.prompt(worker, session, gated("beside"), lane="side")
    operation = await fleet.prompt(worker, session, gated("g", tool))
    await GATES["g"].entered.wait()
    await GATES["beside"].entered.wait()
    await fleet.ok(worker, session, RequestAbort(lane="main", operation_id=operation))
    assert await fleet.settled(operation) == ["aborted"]
    await _interrupted(fleet, session)
    # The lane is free, and the other one goes on as if nothing had happened.
    after = await fleet.prompt(worker, session, "echo: and on")
    assert await fleet.settled(after) == ["completed"]
    before = await fleet.texts(session)
    await _let_go("g")
    assert await fleet.texts(session) == before
    GATES["beside"].release.set()
    assert await fleet.settled(beside) == ["completed"]
    assert GATES["beside"].starts == 1


async def test_an_abort_waits_for_what_ends_in_time(fleet: Fleet) -> None:
    worker = await fleet.worker(abort_seconds=3_600)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, gated("g", "stubborn"))
    await GATES["g"].entered.wait()
    await fleet.ok(worker, session, RequestAbort(lane="main", operation_id=operation))
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["aborted"]
    results = [text for text in await fleet.texts(session) if '"toolResult"' in text]
    assert len(results) == 1
    assert "too late" in results[0]


async def _drain(worker: SessionHost, _fleet: Fleet) -> None:
    await worker.drain(0.05)


async def _lose_lease(worker: SessionHost, fleet: Fleet) -> None:
    await fleet.sql(
        "SELECT pg_terminate_backend(lease_pid) FROM laneway.hosts WHERE id = %s", worker.host_id
    )


@pytest.mark.parametrize("tool", STUCK)
@pytest.mark.parametrize("leave", [_drain, _lose_lease])
async def test_a_session_is_given_back_whatever_its_tool_does(
    fleet: Fleet, tool: str, leave: Callable[[SessionHost, Fleet], Awaitable[None]]
) -> None:
    leaving = await fleet.worker()
    session = await fleet.session()
    operation = await fleet.prompt(leaving, session, gated("g", tool))
    await GATES["g"].entered.wait()
    await fleet.worker()
    await leave(leaving, fleet)
    assert await fleet.settled(operation) == ["completed"]
    await _interrupted(fleet, session)
    before = await fleet.texts(session)
    await _let_go("g")
    assert await fleet.texts(session) == before
    assert GATES["g"].starts == 1


async def test_a_session_that_does_not_close_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await fleet.worker(close_seconds=0.05)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, gated("g"))
    await GATES["g"].entered.wait()
    live = worker.get(fleet.tenant, session)
    assert live is not None

    async def hang(_context: Context) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(live.harness, "close", hang)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    await eventually(lambda: worker.get(fleet.tenant, session) is None)
    assert await fleet.owner(session) is None
    assert session not in worker.lease.held
