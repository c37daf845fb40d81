"""The backends and repositories under test: one line each, and the same suite for all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

pytest.register_assert_rewrite("harness.testing.conformance")

from harness.testing.conformance import RepositoryBackend, StorageBackend  # noqa: E402  # after the rewrite hook
from tests.conformance.backends import (  # noqa: E402
    EagerJsonlBackend,
    JsonlBackend,
    MemoryBackend,
    SqliteBackend,
)
from tests.conformance.repositories import (  # noqa: E402
    JsonlFolder,
    MemoryOnly,
    PostgresTenant,
    SqliteFolder,
)
from tests.postgres import Database  # noqa: E402
from tests.storage_pg.backend import PostgresBackend  # noqa: E402
from tests.storage_pg.kit import Kit  # noqa: E402

BACKENDS: dict[str, Callable[[Path], StorageBackend]] = {
    "memory": MemoryBackend,
    "jsonl": JsonlBackend,
    "jsonl-eager": EagerJsonlBackend,
    "sqlite": SqliteBackend,
}
REPOSITORIES: dict[str, Callable[[Path], RepositoryBackend]] = {
    "memory": MemoryOnly,
    "jsonl": JsonlFolder,
    "sqlite": SqliteFolder,
}


@pytest.fixture
async def hosts(database: Database) -> AsyncIterator[list[Kit]]:
    """Two hosts on one database."""
    made = [await Kit.open(database) for _ in range(2)]
    yield made
    for kit in made:
        await kit.close()


@pytest.fixture(params=[*BACKENDS, "postgres"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> StorageBackend:
    """A backend; the database is started only for the one that needs it."""
    if request.param == "postgres":
        return PostgresBackend(request.getfixturevalue("hosts")[0])
    return BACKENDS[request.param](tmp_path)


@pytest.fixture
async def backend(made: StorageBackend) -> AsyncIterator[StorageBackend]:
    yield made
    await made.dispose()


@pytest.fixture(params=[*REPOSITORIES, "postgres"])
def repositories(request: pytest.FixtureRequest, tmp_path: Path) -> RepositoryBackend:
    if request.param == "postgres":
        return PostgresTenant(request.getfixturevalue("hosts"))
    return REPOSITORIES[request.param](tmp_path / "sessions")
