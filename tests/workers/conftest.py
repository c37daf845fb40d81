"""A fleet on a database of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.postgres import Database
from tests.workers.kit import Fleet
from tests.workers.tools import GATES


@pytest.fixture
async def fleet(fresh_database: Database) -> AsyncIterator[Fleet]:
    """Hosts are started by the test and ended here."""
    GATES.clear()
    made = Fleet(fresh_database)
    yield made
    await made.close()
