"""A fleet of processes that the tests of one module share, kill and top up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.fleet.processes import FleetOfProcesses
from tests.fleet.user import User
from tests.postgres import Cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(
    pg_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[FleetOfProcesses]:
    """No process runs at first."""
    database = pg_cluster.new_database()
    made = FleetOfProcesses(
        database,
        tmp_path_factory.mktemp("fleet"),
        LANEWAY_SILENT_SECONDS="3",
        LANEWAY_HEARTBEAT_SECONDS="0.5",
        LANEWAY_DRAIN_SECONDS="2",
    )
    yield made
    await made.stop()
    pg_cluster.drop(database.name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def user(fleet: FleetOfProcesses) -> AsyncIterator[User]:
    """A tenant's client, which goes to whichever API process lives."""
    made = User(await fleet.tenant(), lambda: [api.url for api in fleet.of("api")])
    yield made
    await made.close()
