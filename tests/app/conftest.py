"""Two API servers and a worker for each module of tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio

from tests.app.kit import Tenant, World, running_api, running_worker, settings_for
from tests.conftest import Route
from tests.postgres import Cluster


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(pg_cluster: Cluster, route: Route) -> AsyncIterator[World]:
    """The servers of this module, on a database of their own."""
    database = route(pg_cluster.new_database())
    async with AsyncExitStack() as stack:
        settings = settings_for(database)
        await stack.enter_async_context(running_worker(settings))
        apis = [await stack.enter_async_context(running_api(settings)) for _ in range(2)]
        async with AsyncExitStack() as clients:
            yield World(database, apis, clients)
    pg_cluster.drop(database.name)


@pytest_asyncio.fixture(loop_scope="module")
async def tenant(world: World) -> Tenant:
    """A tenant of one test."""
    return await world.tenant()
