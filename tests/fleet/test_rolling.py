"""A deploy replaces every process, one after the other, under load: nobody's work fails, nobody's view has a gap."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.chaos import Stage, stage
from tests.fleet.processes import FleetOfProcesses, FleetProcess, until
from tests.fleet.test_deaths import journalled, owner_of, streaming
from tests.fleet.user import User, judge_transcript, tool_prompt
from tests.fleet.watcher import Watcher

pytestmark = pytest.mark.timeout(1_800)

SESSIONS = 6
DRAIN_SECONDS = 1
LONG = "echo: " + " ".join(f"word{number}" for number in range(150))
KINDS = ("echo", "slow_never", "slow_safe")


async def _load(place: Stage, user: User, sessions: list[str]) -> list[str]:
    """An operation in each session, all of them in the middle of a stream or of a tool."""
    operations: list[str] = []
    for number, session in enumerate(sessions):
        operation, kind = user.new_id(), KINDS[number % len(KINDS)]
        prompt = LONG if kind == "echo" else tool_prompt(kind, 3.0, operation)
        assert await user.submit(session, prompt, operation)
        operations.append(operation)
    for number, (session, operation) in enumerate(zip(sessions, operations, strict=True)):
        if KINDS[number % len(KINDS)] == "echo":
            await streaming(place.fleet, session)
        else:
            await journalled(place.fleet, operation, "start")
    return operations


async def test_the_whole_fleet_is_replaced_under_load(tmp_path: Path) -> None:
    # Without a single retry to spend, an operation that a deploy charged for would fail.
    settings = {"LANEWAY_DRAIN_SECONDS": str(DRAIN_SECONDS), "LANEWAY_RETRY_MAX": "0"}
    async with stage(tmp_path, **settings) as place, AsyncExitStack() as stack:
        fleet = place.fleet
        await asyncio.gather(fleet.have("api", 2), fleet.have("worker", 3))
        workers, apis = fleet.of("worker"), fleet.of("api")
        key = await fleet.tenant()
        user = await place.user(key)
        sessions = [await user.session() for _ in range(SESSIONS)]
        watchers = [
            await stack.enter_async_context(Watcher(key, session, place.urls).watching())
            for session in sessions
        ]
        outcomes: list[str] = []
        replaced = [*workers, *apis]
        # A worker and an API process at a time, until none of the old ones is left.
        while workers or apis:
            # No stream ends by itself meanwhile, so the drain of its worker has to cut it.
            with place.model.holding():
                operations = await _load(place, user, sessions)
                if workers:
                    await _replace(fleet, workers, await _streaming_here(fleet, sessions))
                if apis:
                    await _replace(fleet, apis, [])
            outcomes += [(await user.receipt(operation))["outcome"] for operation in operations]
        assert not any(process.alive for process in replaced)
        assert set(outcomes) == {"completed"}
        transcripts = [await user.entries(session) for session in sessions]
        for watcher, entries in zip(watchers, transcripts, strict=True):
            judge_transcript(entries)
            ids = [entry["id"] for entry in entries]
            await until(lambda watcher=watcher, ids=ids: _shows(watcher, ids))
            assert set(watcher.attempts) <= {1}
            assert set(watcher.ends) <= {"draining"}
        interrupted = [entry for entries in transcripts for entry in entries if _is_cut(entry)]
        assert interrupted, "a deploy that interrupts nothing shows nothing"
        # What was said until then is kept, which is why it is charged to nobody.
        assert all(entry["message"]["content"] for entry in interrupted)


async def _streaming_here(fleet: FleetOfProcesses, sessions: list[str]) -> list[FleetProcess]:
    return [await owner_of(fleet, session) for session in sessions[:: len(KINDS)]]


async def _replace(
    fleet: FleetOfProcesses, old: list[FleetProcess], first: list[FleetProcess]
) -> None:
    """Start a new process and then end one of the old ones, of those that are to go first if any is."""
    leaving = next((process for process in first if process in old), old[0])
    old.remove(leaving)
    await fleet.start(leaving.role)
    leaving.signal(signal.SIGTERM)
    assert await leaving.ended(600) == 0


async def _shows(watcher: Watcher, entries: list[str]) -> bool:
    assert len(set(watcher.entries)) == len(watcher.entries)
    return watcher.entries == entries


def _is_cut(entry: dict[str, Any]) -> bool:
    message = entry.get("message", {})
    return message.get("role") == "assistant" and message.get("stopReason") == "error"
