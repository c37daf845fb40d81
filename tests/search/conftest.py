"""Every repository with an index that can serve it: one line each in `PLACES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from harness.environment import Environment
from harness.session.repo_files import JsonlSessions, SqliteSessions
from harness.session.repo_memory import MemorySessions
from tests.postgres import Database
from tests.search.places import EmbeddedPlace, Place, PostgresPlace
from tests.storage_pg.kit import Kit

FIELDS = ("cwd", "project", "owner.name", "tags")
ENVIRONMENT = Environment.system()


async def _memory(folder: Path, _kit: Callable[[], Kit]) -> Place:
    return await EmbeddedPlace.open(MemorySessions(ENVIRONMENT), folder, FIELDS)


async def _jsonl(folder: Path, _kit: Callable[[], Kit]) -> Place:
    return await EmbeddedPlace.open(JsonlSessions(folder / "s", ENVIRONMENT), folder, FIELDS)


async def _sqlite(folder: Path, _kit: Callable[[], Kit]) -> Place:
    return await EmbeddedPlace.open(SqliteSessions(folder / "s", ENVIRONMENT), folder, FIELDS)


async def _postgres(folder: Path, kit: Callable[[], Kit]) -> Place:
    return PostgresPlace(kit(), FIELDS)


async def _postgres_in_sqlite(folder: Path, kit: Callable[[], Kit]) -> Place:
    return await PostgresPlace.with_sqlite_index(kit(), folder, FIELDS)


PLACES = {
    "memory": _memory,
    "jsonl": _jsonl,
    "sqlite": _sqlite,
    "postgres": _postgres,
    "postgres-sqlite": _postgres_in_sqlite,
}


@pytest.fixture
async def kit(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[], Kit]]:
    """The Postgres objects, for those who ask; the server is not started for others."""
    name = getattr(request.node, "callspec", None)
    wanted = name is not None and "postgres" in str(name.params.get("place", ""))
    if not wanted and "postgres" not in request.node.name:
        yield _no_kit
        return
    database: Database = request.getfixturevalue("database")
    made = await Kit.open(database)
    yield lambda: made
    await made.close()


def _no_kit() -> Kit:
    raise AssertionError("this test did not ask for Postgres")


@pytest.fixture(params=PLACES)
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, kit: Callable[[], Kit]
) -> AsyncIterator[Place]:
    made = await PLACES[request.param](tmp_path, kit)
    yield made
    await made.close()
