"""A fleet of processes for one test, on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fleet.processes import FleetOfProcesses
from tests.fleet.user import User
from tests.postgres import Database


@pytest.fixture
async def fleet(fresh_database: Database, tmp_path: Path) -> AsyncIterator[FleetOfProcesses]:
    """No process runs yet."""
    made = FleetOfProcesses(
        fresh_database,
        tmp_path,
        LANEWAY_SILENT_SECONDS="3",
        LANEWAY_HEARTBEAT_SECONDS="0.5",
        LANEWAY_DRAIN_SECONDS="2",
    )
    yield made
    await made.stop()


@pytest.fixture
async def user(fleet: FleetOfProcesses) -> AsyncIterator[User]:
    """A tenant's client, which goes to whichever API process lives."""
    made = User(await fleet.tenant(), lambda: [api.url for api in fleet.of("api")])
    yield made
    await made.close()
