"""The backends at either end of a transfer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.postgres import Database
from tests.session.ends import EmbeddedEnd, End, PostgresEnd, embedded
from tests.storage_pg.kit import Kit

ENDS = ("memory", "jsonl", "sqlite", "postgres")


@pytest.fixture
async def postgres_end(database: Database) -> AsyncIterator[PostgresEnd]:
    """A tenant of its own."""
    kit = await Kit.open(database)
    yield PostgresEnd(kit)
    await kit.close()


def _end(name: str, folder: Path, request: pytest.FixtureRequest) -> End:
    if name == "postgres":
        return request.getfixturevalue("postgres_end")
    return embedded(name, folder)


@pytest.fixture(params=ENDS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> End:
    return _end(request.param, tmp_path / "source", request)


@pytest.fixture(params=ENDS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> End:
    return _end(request.param, tmp_path / "target", request)


@pytest.fixture
def origin() -> EmbeddedEnd:
    """Where a session comes from when it does not matter where."""
    return embedded("memory", Path())
