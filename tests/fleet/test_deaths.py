"""One process dies at a chosen moment; the operation reaches its end without anybody's help."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

from tests.fleet.processes import FleetOfProcesses, FleetProcess, until
from tests.fleet.user import User, judge_transcript, tool_prompt

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

LONG = "echo: " + " ".join(f"word{number}" for number in range(250))


async def owner_of(fleet: FleetOfProcesses, session: str) -> FleetProcess:
    """The worker that owns a session, once one does."""
    found: list[FleetProcess] = []

    async def owned() -> bool:
        rows = await asyncio.to_thread(
            fleet.rows,
            "SELECT h.process_id FROM laneway.sessions s JOIN laneway.hosts h ON h.id = s.owner_host"
            " WHERE s.id = %s",
            session,
        )
        # By process: one that lost its lease connection goes on as another host.
        found.extend(worker for worker in fleet.of("worker") if (worker.process.pid,) in rows)
        return bool(found)

    await until(owned)
    return found[0]


async def streaming(fleet: FleetOfProcesses, session: str) -> None:
    """Return when some of a stream's frames are stored."""

    async def stored() -> bool:
        rows = await asyncio.to_thread(
            fleet.rows,
            "SELECT count(*) FROM laneway.list_values WHERE session_id = %s",
            session,
        )
        return int(rows[0][0]) >= 3

    await until(stored)


async def journalled(fleet: FleetOfProcesses, tag: str, *kinds: str) -> None:
    """Return when a tool has noted one of these."""

    async def noted() -> bool:
        return any(fleet.notes(tag, kind) for kind in kinds)

    await until(noted)


def results(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tool results of a transcript."""
    return [
        entry["message"]
        for entry in entries
        if entry.get("message", {}).get("role") == "toolResult"
    ]


async def test_a_worker_dies_in_the_middle_of_a_stream(fleet: FleetOfProcesses, user: User) -> None:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 2))
    session, operation = await user.session(), user.new_id()
    assert await user.submit(session, LONG, operation)
    await streaming(fleet, session)
    await (await owner_of(fleet, session)).kill()
    receipt = await user.receipt(operation)
    assert receipt["outcome"] == "completed"
    entries = await user.entries(session)
    judge_transcript(entries)
    responses = [e["message"] for e in entries if e["message"]["role"] == "assistant"]
    assert [r["stopReason"] for r in responses] == ["error", "stop"]
    assert "interrupted" in responses[0]["errorMessage"]
    assert responses[0]["content"], "the saved part of the stream is kept"


@pytest.mark.parametrize("tool", ["slow_never", "slow_safe"])
async def test_a_worker_dies_in_the_middle_of_a_tool(
    fleet: FleetOfProcesses, user: User, tool: str
) -> None:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 2))
    session, operation = await user.session(), user.new_id()
    assert await user.submit(session, tool_prompt(tool, 3.0, operation), operation)
    await journalled(fleet, operation, "start")
    await (await owner_of(fleet, session)).kill()
    receipt = await user.receipt(operation)
    assert receipt["outcome"] == "completed"
    entries = await user.entries(session)
    judge_transcript(entries)
    (result,) = results(entries)
    starts = fleet.notes(operation, "start")
    if tool == "slow_never":
        assert len(starts) == 1
        assert result["isError"]
        assert "interrupted" in result["content"][-1]["text"]
    else:
        assert len(starts) == 2
        assert starts[0] == starts[1], "the invocation id survives the replay"
        assert not result.get("isError", False)


async def test_everything_dies_between_acceptance_and_drive(
    fleet: FleetOfProcesses, user: User
) -> None:
    await fleet.have("api", 1)
    for worker in fleet.of("worker"):
        await worker.kill()
    session, operation = await user.session(), user.new_id()
    assert await user.submit(session, "echo: later", operation)
    for api in fleet.of("api"):
        await api.kill()
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 1))
    assert (await user.receipt(operation))["outcome"] == "completed"
    # The same request again is the same operation, not another one.
    assert await user.submit(session, "echo: later", operation)
    assert len(await user.entries(session)) == 2


async def test_the_api_dies_right_after_the_admission(fleet: FleetOfProcesses, user: User) -> None:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 1))
    session, operation = await user.session(), user.new_id()
    assert await user.submit(session, "echo: at once", operation)
    for api in fleet.of("api"):
        await api.kill()
    await fleet.have("api", 1)
    assert (await user.receipt(operation))["outcome"] == "completed"


async def test_a_zombie_commits_nothing_when_it_wakes(fleet: FleetOfProcesses, user: User) -> None:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 2))
    session, operation = await user.session(), user.new_id()
    assert await user.submit(session, tool_prompt("slow_never", 1.0, operation), operation)
    await journalled(fleet, operation, "start")
    stopped = await owner_of(fleet, session)
    stopped.signal(signal.SIGSTOP)
    assert (await user.receipt(operation))["outcome"] == "completed"
    before = await user.entries(session)
    (result,) = results(before)
    assert "interrupted" in result["content"][-1]["text"]
    stopped.signal(signal.SIGCONT)
    # It wakes in the middle of its tool and finds that the session is not its own.
    await journalled(fleet, operation, "end", "cut")
    second = user.new_id()
    await until(lambda: user.submit(session, "echo: and on", second))
    assert (await user.receipt(second))["outcome"] == "completed"
    after = await user.entries(session)
    judge_transcript(after)
    assert after[: len(before)] == before
    assert len(after) == len(before) + 2
    assert len(fleet.notes(operation, "start")) == 1


async def test_a_drained_worker_hands_its_work_on(fleet: FleetOfProcesses, user: User) -> None:
    await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 2))
    session, operation = await user.session(), user.new_id()
    assert await user.submit(session, LONG, operation)
    await streaming(fleet, session)
    first = await owner_of(fleet, session)
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0
    assert (await user.receipt(operation))["outcome"] == "completed"
    judge_transcript(await user.entries(session))
