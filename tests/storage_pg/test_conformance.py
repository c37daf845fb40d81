"""Postgres gives the same answers as every other backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.testing.conformance import StorageBackend, StorageConformance
from tests.storage_pg.backend import PostgresBackend
from tests.storage_pg.kit import Kit


@pytest.fixture
async def backend(kit: Kit) -> AsyncIterator[StorageBackend]:
    made = PostgresBackend(kit)
    yield made
    await made.dispose()


class TestPostgres(StorageConformance):
    """The shipped suite."""
