"""An operation that leads nowhere is ended, and harms nobody else (design §6)."""

from __future__ import annotations

import json
from typing import Any

from harness.runtime.hooks import BeforeDrive
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import Inspect
from workers.host import SessionHost


def hook(host: SessionHost, handler: Any) -> None:
    """Have every session that this host opens call a hook before each pass."""
    attach = host.registry._attach

    async def attaching(owned: Any) -> Any:
        live = await attach(owned)
        live.harness.hooks.on("before_drive", handler)
        return live

    host.registry._attach = attaching


async def error_of(fleet: Fleet, operation: str) -> dict[str, Any]:
    rows = await fleet.sql("SELECT error FROM laneway.operations WHERE id = %s", operation)
    return json.loads(rows[0][0])


async def test_a_hook_that_always_fails_ends_the_operation(fleet: Fleet) -> None:
    worker = await fleet.worker()
    calls = 0

    async def failing(event: BeforeDrive, _context: Any) -> None:
        nonlocal calls
        if event.lane == "main":
            calls += 1
            raise ValueError("never today")

    hook(worker, failing)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, "echo: x")
    assert await fleet.settled(operation) == ["failed"]
    error = await error_of(fleet, operation)
    assert error["code"] == "crash_loop"
    assert "never today" in error["message"]
    assert error["details"]["passes"] == 5
    assert calls == 5
    seen = await fleet.ok(worker, session, Inspect(lane="main"))
    assert seen.get("current") is None
    assert seen["lastResult"]["outcome"] == "failed"


async def test_an_operation_that_kills_its_host_each_time_is_ended(fleet: Fleet) -> None:
    api = await fleet.api()
    bystander, victim = await fleet.session(), await fleet.session()
    operation = await fleet.prompt(api, victim, gated("deadly", "gated_safe"))
    others: list[str] = []
    for number in range(1, 7):
        worker = await fleet.worker()
        if await fleet.outcome(operation) is not None:
            break
        # The first pass makes progress up to the tool; the ones after it only repeat the tool.
        await eventually(lambda n=number: GATES["deadly"].starts == n)
        others.append(await fleet.prompt(api, bystander, f"echo: {number}"))
        await fleet.settled(others[-1])
        await fleet.kill(worker)
    await fleet.worker()
    assert await fleet.settled(operation) == ["failed"]
    assert (await error_of(fleet, operation))["code"] == "crash_loop"
    assert set(await fleet.settled(*others)) == {"completed"}
    assert GATES["deadly"].starts == 6


async def test_progress_resets_the_count(fleet: Fleet) -> None:
    worker = await fleet.worker()
    left = 4

    async def failing(_event: BeforeDrive, _context: Any) -> None:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ValueError("not yet")

    hook(worker, failing)
    session = await fleet.session()
    one = await fleet.prompt(worker, session, "echo: x")
    assert await fleet.settled(one) == ["completed"]
    left = 4
    two = await fleet.prompt(worker, session, "echo: x")
    assert await fleet.settled(two) == ["completed"]


async def test_drains_count_against_nobody(fleet: Fleet) -> None:
    session = None
    operation = ""
    for number in range(1, 9):
        worker = await fleet.worker()
        if session is None:
            session = await fleet.session()
            operation = await fleet.prompt(worker, session, gated("long", "gated_safe"))
        await eventually(lambda n=number: GATES["long"].starts == n)
        await worker.drain(0)
        await fleet.stop(worker)
    await fleet.worker()
    GATES["long"].release.set()
    assert await fleet.settled(operation) == ["completed"]
