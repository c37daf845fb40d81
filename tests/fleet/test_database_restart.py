"""The database goes away in the middle of runs and comes back: the fleet waits, and goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from storage_pg.embedded import EmbeddedServer
from tests.fleet.processes import FleetOfProcesses
from tests.fleet.test_deaths import journalled, streaming
from tests.fleet.user import User, judge_transcript, tool_prompt
from tests.postgres import Cluster

pytestmark = [pytest.mark.timeout(900), pytest.mark.asyncio(loop_scope="module")]

LONG = "echo: " + " ".join(f"word{number}" for number in range(150))


class Place:
    """A server of the test's own, a fleet on it, and a user."""

    def __init__(self, server: EmbeddedServer, fleet: FleetOfProcesses, user: User) -> None:
        self.server = server
        self.fleet = fleet
        self.user = user


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder: Path = tmp_path_factory.mktemp("restart")
    server = EmbeddedServer(folder / "postgres")
    await asyncio.to_thread(server.start)
    try:
        cluster = Cluster(server.dsn(), "restart")
        await asyncio.to_thread(cluster.prepare)
        fleet = FleetOfProcesses(
            cluster.new_database(),
            folder,
            LANEWAY_SILENT_SECONDS="3",
            LANEWAY_HEARTBEAT_SECONDS="0.5",
        )
        user = User(await fleet.tenant(), lambda: [api.url for api in fleet.of("api")])
        await asyncio.gather(fleet.have("api", 1), fleet.have("worker", 2))
        yield Place(server, fleet, user)
        await user.close()
        await fleet.stop()
    finally:
        await asyncio.to_thread(server.stop)


@pytest.mark.parametrize("how", ["shut down", "power cut"])
async def test_postgres_restarts_in_the_middle_of_a_stream(place: Place, how: str) -> None:
    session, operation = await place.user.session(), place.user.new_id()
    assert await place.user.submit(session, LONG, operation)
    await streaming(place.fleet, session)
    await asyncio.to_thread(place.server.stop if how == "shut down" else place.server.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(place.server.start)
    assert (await place.user.receipt(operation))["outcome"] == "completed"
    judge_transcript(await place.user.entries(session))


async def test_postgres_restarts_in_the_middle_of_an_unsafe_tool(place: Place) -> None:
    session, operation = await place.user.session(), place.user.new_id()
    assert await place.user.submit(session, tool_prompt("slow_never", 1.5, operation), operation)
    await journalled(place.fleet, operation, "start")
    await asyncio.to_thread(place.server.kill)
    await asyncio.to_thread(place.server.start)
    assert (await place.user.receipt(operation))["outcome"] == "completed"
    judge_transcript(await place.user.entries(session))
    assert len(place.fleet.notes(operation, "start")) == 1
