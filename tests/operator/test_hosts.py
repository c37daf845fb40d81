"""Hosts as an operator sees them, and the order to leave, which is followed as SIGTERM is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.fleet.processes import FleetOfProcesses
from tests.operator.kit import command
from tests.postgres import Database
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES


async def test_hosts_are_listed_with_what_they_own(fleet: Fleet) -> None:
    worker = await fleet.worker(host_name="one")
    api = await fleet.api(host_name="two")
    await fleet.prompt(worker, await fleet.session(), gated("g"))
    await GATES["g"].entered.wait()
    listed = (await command(fleet.database, "host", "list", "--json")).documents
    assert [(each["id"], each["name"], each["role"], each["state"]) for each in listed] == [
        (worker.host_id, "one", "worker", "live"),
        (api.host_id, "two", "api", "live"),
    ]
    assert [each["sessions"] for each in listed] == [1, 0]
    shown = await command(fleet.database, "host", "list")
    assert str(worker.host_id) in shown.text
    GATES["g"].release.set()


async def test_a_dead_host_is_listed_as_dead(fleet: Fleet) -> None:
    dying = await fleet.host("worker", jobs=False)
    await fleet.kill(dying)

    async def dead() -> bool:
        listed = (await command(fleet.database, "host", "list", "--json")).documents
        return [each["state"] for each in listed] == ["dead"]

    await eventually(dead)


async def test_an_order_to_leave_is_heard_with_the_next_heartbeat(fleet: Fleet) -> None:
    staying = await fleet.worker(heartbeat_seconds=0.05, host_name="staying")
    leaving = await fleet.worker(heartbeat_seconds=0.05, host_name="leaving")
    said = await command(fleet.database, "host", "drain", "leaving", "--json")
    assert said.documents == [{"id": leaving.host_id, "gone": False}]
    await leaving.leaving.wait()
    listed = (await command(fleet.database, "host", "list", "--json")).documents
    assert {each["name"]: each["state"] for each in listed} == {
        "staying": "live",
        "leaving": "leaving",
    }
    assert not staying.leaving.is_set()


async def test_an_order_that_cannot_be_followed_is_refused(fleet: Fleet) -> None:
    for _ in range(2):
        await fleet.api(host_name="twin")
    unknown = await command(fleet.database, "host", "drain", "nobody")
    assert (unknown.status, "no host 'nobody'" in unknown.errors) == (1, True)
    twins = await command(fleet.database, "host", "drain", "twin")
    assert (twins.status, "several hosts" in twins.errors) == (1, True)


async def test_processes_that_are_told_to_leave_drain_and_end(
    fresh_database: Database, tmp_path: Path
) -> None:
    fleet = FleetOfProcesses(
        fresh_database,
        tmp_path,
        LANEWAY_HEARTBEAT_SECONDS="0.1",
        LANEWAY_DRAIN_SECONDS="30",
    )
    try:
        api, worker = await asyncio.gather(fleet.start("api"), fleet.start("worker"))
        listed = (await command(fresh_database, "host", "list", "--json")).documents
        assert {each["role"] for each in listed} == {"api", "worker"}
        for each in listed:
            said = await command(fresh_database, "host", "drain", each["id"], "--wait", "--json")
            assert said.documents == [{"id": each["id"], "gone": True}]
        assert [await process.ended() for process in (api, worker)] == [0, 0]
    finally:
        await fleet.stop()
