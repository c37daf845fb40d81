"""A tenant, a host and its sessions on this test process's database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.postgres import Database
from tests.storage_pg.kit import Kit


@pytest.fixture
async def kit(database: Database) -> AsyncIterator[Kit]:
    """Everything a test needs to create and own sessions, with a tenant of its own."""
    made = await Kit.open(database)
    yield made
    await made.close()


@pytest.fixture
async def fresh_kit(fresh_database: Database) -> AsyncIterator[Kit]:
    """The same on a database that no other test uses, for what looks at all tenants."""
    made = await Kit.open(fresh_database)
    yield made
    await made.close()
