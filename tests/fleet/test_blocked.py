"""A process whose tools misbehave: one blocks the event loop, one does not end when it is told to."""

from __future__ import annotations

import asyncio
import signal

import pytest

from tests.fleet.processes import FleetOfProcesses
from tests.fleet.test_deaths import journalled, owner_of, results
from tests.fleet.user import User, judge_transcript, tool_prompt

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]


async def test_nobody_takes_over_from_a_process_whose_loop_is_blocked(
    fleet: FleetOfProcesses, user: User
) -> None:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 2))
    session, operation = await user.session(), user.new_id()
    # Longer than a host may be silent; what beats is a thread.
    assert await user.submit(session, tool_prompt("block", 5.0, operation), operation)
    await journalled(fleet, operation, "start")
    owner = await owner_of(fleet, session)
    assert (await user.receipt(operation))["outcome"] == "completed"
    assert owner.alive
    entries = await user.entries(session)
    judge_transcript(entries)
    (result,) = results(entries)
    assert result["content"][-1]["text"] == "the work is done"
    assert len(fleet.notes(operation, "start")) == 1


async def test_a_tool_that_does_not_end_keeps_no_process(
    fleet: FleetOfProcesses, user: User
) -> None:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 2))
    session, operation = await user.session(), user.new_id()
    assert await user.submit(session, tool_prompt("stubborn", 0, operation), operation)
    await journalled(fleet, operation, "start")
    leaving = await owner_of(fleet, session)
    leaving.signal(signal.SIGTERM)
    assert await leaving.ended() == 0
    assert (await user.receipt(operation))["outcome"] == "completed"
    (result,) = results(await user.entries(session))
    assert result["isError"]
    assert "interrupted" in result["content"][-1]["text"]
    assert len(fleet.notes(operation, "start")) == 1
