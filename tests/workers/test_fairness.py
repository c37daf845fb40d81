"""Nobody waits behind another tenant's crowd: not at a host, not in a session that is owned, not in the fleet."""

from __future__ import annotations

import asyncio

from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import CreateLane
from workers.host import SessionHost


async def crowd(
    fleet: Fleet, host: SessionHost, tenant: str, gate: str, lanes: int
) -> tuple[str, list[str]]:
    """A session in which so many operations wait at one gate, accepted through its owner."""
    session = await fleet.session_of(tenant)
    first = await fleet.prompt_of(tenant, host, session, gated(gate))
    await GATES[gate].entered.wait()
    operations = [first]
    for number in range(1, lanes):
        name = f"lane{number}"
        await fleet.ok_of(tenant, host, session, CreateLane(name=name))
        operations.append(await fleet.prompt_of(tenant, host, session, gated(gate), name))
    return session, operations


async def step(gate: str) -> None:
    """Let what waits at the gate go on, once."""
    GATES[gate].release.set()
    await asyncio.sleep(0)
    GATES[gate].release.clear()


async def test_a_host_drives_no_more_than_it_may_whatever_it_owns(fleet: Fleet) -> None:
    worker = await fleet.worker(max_drives=2)
    _, operations = await crowd(fleet, worker, fleet.tenant, "crowd", 6)
    await eventually(lambda: GATES["crowd"].starts == 2)
    await asyncio.sleep(0.05)
    assert worker.registry.driving == 2
    assert worker.slots.free == 0
    # Each place that becomes free is taken, without anybody's command.
    GATES["crowd"].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 6
    await eventually(lambda: worker.slots.free == 2)


async def test_a_tenants_limit_holds_in_an_owned_session(fleet: Fleet) -> None:
    worker = await fleet.worker()
    await fleet.sql("UPDATE laneway.tenants SET limits = '{\"concurrentDrives\": 2}'")
    _, operations = await crowd(fleet, worker, fleet.tenant, "crowd", 5)
    await eventually(lambda: GATES["crowd"].starts == 2)
    await asyncio.sleep(0.05)
    assert GATES["crowd"].starts == 2
    rows = await fleet.sql("SELECT count(*) FROM laneway.open_operations WHERE driven_by IS NULL")
    assert rows == [(3,)]
    GATES["crowd"].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 5


async def test_a_single_operation_gets_the_next_place(fleet: Fleet) -> None:
    busy, quiet = await fleet.new_tenant(), await fleet.new_tenant()
    worker = await fleet.worker(max_drives=2)
    api = await fleet.api()
    await crowd(fleet, worker, busy, "crowd", 40)
    # And as many that wait in the database.
    for _ in range(5):
        await fleet.prompt_of(busy, api, await fleet.session_of(busy), gated("crowd"))
    await eventually(lambda: GATES["crowd"].starts == 2)
    lone_session = await fleet.session_of(quiet)
    lone = await fleet.prompt_of(quiet, api, lone_session, gated("lone"))
    # It has come to where it waits for a place.
    await eventually(lambda: bool(worker._drives._coming))
    before = GATES["crowd"].ends
    await step("crowd")
    await GATES["lone"].entered.wait()
    # What was let go is two at the most, and none of the crowd that came later is before it.
    assert GATES["crowd"].ends - before <= 2
    assert GATES["crowd"].starts <= 2 + GATES["crowd"].ends
    assert worker.registry.driving == 2
    GATES["lone"].release.set()
    assert await fleet.settled(lone) == ["completed"]


async def test_places_that_become_free_elsewhere_are_found(fleet: Fleet) -> None:
    """A tenant at its limit through one host waits at another, which is told of nothing."""
    await fleet.sql("UPDATE laneway.tenants SET limits = '{\"concurrentDrives\": 1}'")
    one, other = await fleet.worker(), await fleet.worker()
    first = await fleet.prompt(one, await fleet.session(), gated("one"))
    await GATES["one"].entered.wait()
    session = await fleet.session()
    async with other.registry.owning(fleet.tenant, session):
        second = await fleet.prompt(other, session, "echo: x")
        GATES["one"].release.set()
        assert await fleet.settled(first, second) == ["completed", "completed"]


async def test_a_place_that_came_for_an_operation_is_kept_for_it(fleet: Fleet) -> None:
    """However long the line behind it is, and though the session that it came to asks in that line."""
    api = await fleet.api()
    worker = await fleet.host("worker", jobs=False, max_drives=1)
    running = await fleet.prompt(worker, await fleet.session(), gated("running"))
    await GATES["running"].entered.wait()
    waiting: list[str] = []
    for gate in ("first", "second"):
        session = await fleet.session()
        operation = await fleet.prompt(api, session, gated(gate))
        assert await worker.drive(fleet.tenant, session, "main", operation) == "waits"
        waiting.append(operation)
    GATES["running"].release.set()
    await eventually(lambda: GATES["first"].starts == 1 or worker.slots.free == 1)
    assert (GATES["first"].starts, GATES["second"].starts) == (1, 0)
    GATES["first"].release.set()
    assert await fleet.settled(running, waiting[0]) == ["completed"] * 2
