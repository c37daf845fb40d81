"""An operation whose session cannot be opened is ended after five passes, and harms no other (design §6)."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import Context
from harness.errors import (
    HarnessClosed,
    HarnessFault,
    InvariantDefect,
    LeaseLost,
    NewerVersion,
    StorageCorrupt,
    StorageError,
)
from harness.runtime.hooks import BeforeDrive
from storage_pg.sessions import OwnedSession
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.test_poison import error_of, hook
from tests.workers.tools import GATES
from workers.commands import CreateLane, Inspect, NextRun
from workers.host import SessionHost
from workers.live import LiveSession
from workers.poison import MOST_PASSES, is_excused


async def settled_soon(fleet: Fleet, worker: SessionHost, *operations: str) -> list[str | None]:
    """Wait until the operations are over, without the dispatcher's pauses."""
    waiting = asyncio.ensure_future(fleet.settled(*operations))
    while not waiting.done():
        worker.dispatcher.poke()
        await asyncio.wait([waiting], timeout=0.05)
    return await waiting


async def damage(fleet: Fleet, namespace: str, key: str, value: str = "{}") -> None:
    rows = await fleet.sql(
        "UPDATE laneway.scalar_values SET value = %s WHERE namespace = %s AND key = %s RETURNING 1",
        value,
        namespace,
        key,
    )
    assert rows == [(1,)]


async def test_an_unreadable_state_ends_its_operation_and_no_other(fleet: Fleet) -> None:
    api = await fleet.api()
    session, elsewhere = await fleet.session(), await fleet.session()
    await fleet.ok(api, session, CreateLane(name="side"))
    await fleet.ok(api, session, NextRun(lane="main", message="said before"))
    broken = await fleet.prompt(api, session, "echo: never said")
    beside = await fleet.prompt(api, session, "echo: beside", lane="side")
    other = await fleet.prompt(api, elsewhere, "echo: elsewhere")
    await damage(fleet, "pi.op.state", broken, '{"kind": "run", "phase": "of another world"}')
    worker = await fleet.worker()
    assert await settled_soon(fleet, worker, broken, beside, other) == [
        "failed",
        "completed",
        "completed",
    ]
    error = await error_of(fleet, broken)
    assert error["code"] == "crash_loop"
    assert error["details"]["passes"] == 5
    assert worker.metrics.registry.get_sample_value("laneway_operations_poisoned_total") == 1
    # The lane is free, and remembers how its operation ended.
    seen = await fleet.ok(api, session, Inspect(lane="main"))
    assert seen.get("current") is None
    assert seen["lastResult"]["error"]["code"] == "crash_loop"
    assert await settled_soon(fleet, worker, await fleet.prompt(api, session, "echo: x")) == [
        "completed"
    ]
    left = await fleet.sql(
        "SELECT namespace, key FROM laneway.scalar_values WHERE namespace LIKE 'pi.op.%%'"
    )
    assert left == []


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE laneway.scalar_values SET value = '[]' WHERE namespace = 'pi.lane.state'",
        "UPDATE laneway.scalar_values SET value = '[]' WHERE namespace = 'pi.lane.leaf'",
        "UPDATE laneway.scalar_values SET value = '[]' WHERE namespace = 'pi.op.meta'",
        "DELETE FROM laneway.scalar_values WHERE namespace = 'pi.op.state'",
        "UPDATE laneway.sessions SET usage = '[]'",
        "UPDATE laneway.agents SET profile = '[]'",
    ],
    ids=["lane state", "leaf", "metadata", "no state", "totals", "agent"],
)
async def test_whatever_keeps_a_session_from_opening_ends_what_waits_in_it(
    fleet: Fleet, statement: str
) -> None:
    api = await fleet.api()
    await fleet.sql(
        "INSERT INTO laneway.agents (id, tenant_id, name, version, profile, created_at)"
        " VALUES (gen_random_uuid(), %s, 'odd', 1, '{}', 0)",
        fleet.tenant,
    )
    session = await fleet.session(agent="odd")
    operation = await fleet.prompt(api, session, "echo: never said")
    await fleet.sql(statement)
    worker = await fleet.worker()
    assert await settled_soon(fleet, worker, operation) == ["failed"]
    assert (await error_of(fleet, operation))["code"] == "crash_loop"
    assert await fleet.sql("SELECT count(*) FROM laneway.open_operations") == [(0,)]
    # The worker goes on with others.
    healthy = await fleet.prompt(api, await fleet.session(), "echo: x")
    assert await settled_soon(fleet, worker, healthy) == ["completed"]


async def test_a_session_that_a_newer_version_wrote_waits_for_it(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: later")
    await fleet.sql("UPDATE laneway.sessions SET storage_version = storage_version + 1")
    worker = await fleet.host("worker", jobs=False)
    for _ in range(7):
        assert await worker.drive(fleet.tenant, session, "main", operation) == "newer"
    assert await fleet.sql("SELECT passes FROM laneway.open_operations") == [(0,)]
    await fleet.sql("UPDATE laneway.sessions SET storage_version = storage_version - 1")
    assert await worker.drive(fleet.tenant, session, "main", operation) == "claimed"
    assert await fleet.settled(operation) == ["completed"]


async def test_a_lane_that_stops_its_session_each_time_harms_no_other_lane(fleet: Fleet) -> None:
    worker = await fleet.worker()

    async def damaged(event: BeforeDrive, context: Context) -> None:
        live = worker.get(fleet.tenant, session)
        if event.lane == "main" and live is not None:
            damage = StorageCorrupt("the conversation is damaged")
            live.harness._core.fault(damage, context, event.lane)

    hook(worker, damaged)
    session = await fleet.session()
    await fleet.ok(worker, session, CreateLane(name="side"))
    beside = await fleet.prompt(worker, session, gated("g", "gated_safe"), lane="side")
    await GATES["g"].entered.wait()
    broken = await fleet.prompt(worker, session, "echo: never said")
    assert await settled_soon(fleet, worker, broken) == ["failed"]
    assert "the conversation is damaged" in (await error_of(fleet, broken))["message"]

    # It was stopped with the session each time, and that does not count against it.
    async def driven() -> bool:
        worker.dispatcher.poke()
        return bool(
            await fleet.sql("SELECT 1 FROM laneway.open_operations WHERE driven_by IS NOT NULL")
        )

    await eventually(driven)
    assert await fleet.sql("SELECT passes FROM laneway.open_operations") == [(1,)]
    GATES["g"].release.set()
    assert await settled_soon(fleet, worker, beside) == ["completed"]


@pytest.mark.parametrize(
    ("error", "excused"),
    [
        (HarnessClosed(), True),
        (LeaseLost(), True),
        (StorageError("the database is away"), True),
        (NewerVersion(9, 1), True),
        (StorageCorrupt("damaged"), False),
        (InvariantDefect("broken"), False),
        (ValueError("a hook"), False),
        (HarnessFault("x", LeaseLost(), "main"), True),
        (HarnessFault("x", StorageCorrupt("damaged"), "main"), False),
        (HarnessFault("x", StorageCorrupt("damaged"), "side"), True),
        (HarnessFault("x", StorageCorrupt("damaged")), False),
        (HarnessFault("x"), False),
    ],
)
def test_who_is_to_blame(error: Exception, excused: bool) -> None:
    assert is_excused(error, "main") is excused


async def dies_opening(fleet: Fleet, session: str) -> None:
    """A worker that comes for the session, claims it, and lives no longer than that."""
    worker = await fleet.worker()
    attach, claimed, dead = worker.registry._attach, asyncio.Event(), asyncio.Event()

    async def dying(owned: OwnedSession) -> LiveSession:
        if owned.claimed.id != session:
            return await attach(owned)
        claimed.set()
        await dead.wait()
        raise LeaseLost

    worker.registry._attach = dying
    while not claimed.is_set():
        worker.dispatcher.poke()
        await asyncio.sleep(0.01)
    await fleet.kill(worker)
    dead.set()


@pytest.mark.parametrize("began", [False, True], ids=["at first", "after progress"])
async def test_what_kills_each_host_that_opens_its_session_is_ended(
    fleet: Fleet, began: bool
) -> None:
    api = await fleet.api()
    session = await fleet.session()
    if began:
        # Passes that were counted at an earlier state do not count any more.
        first = await fleet.worker()
        operation = await fleet.prompt(api, session, gated("deadly", "gated_safe"))
        await GATES["deadly"].entered.wait()
        await fleet.kill(first)
        await fleet.sql("UPDATE laneway.open_operations SET passes = 4, progress_seq = 1")
    else:
        operation = await fleet.prompt(api, session, "echo: never said")
    for number in range(MOST_PASSES):
        assert await fleet.outcome(operation) is None, f"{number} deaths"
        await dies_opening(fleet, session)
    worker = await fleet.worker()
    assert await settled_soon(fleet, worker, operation) == ["failed"]
    error = await error_of(fleet, operation)
    assert (error["code"], error["details"]["passes"]) == ("crash_loop", MOST_PASSES)
    seen = await fleet.ok(api, session, Inspect(lane="main"))
    assert seen.get("current") is None
    assert await settled_soon(fleet, worker, await fleet.prompt(api, session, "echo: x")) == [
        "completed"
    ]
