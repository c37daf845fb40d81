"""The backends under test: one line each in `BACKENDS`."""

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
from tests.conformance.repositories import JsonlFolder, MemoryOnly, SqliteFolder  # noqa: E402

BACKENDS: dict[str, Callable[[Path], StorageBackend]] = {
    "memory": MemoryBackend,
    "jsonl": JsonlBackend,
    "jsonl-eager": EagerJsonlBackend,
    "sqlite": SqliteBackend,
}


@pytest.fixture(params=BACKENDS)
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StorageBackend]:
    made = BACKENDS[request.param](tmp_path)
    yield made
    await made.dispose()


REPOSITORIES: dict[str, Callable[[Path], RepositoryBackend]] = {
    "memory": MemoryOnly,
    "jsonl": JsonlFolder,
    "sqlite": SqliteFolder,
}


@pytest.fixture(params=REPOSITORIES)
def repositories(request: pytest.FixtureRequest, tmp_path: Path) -> RepositoryBackend:
    return REPOSITORIES[request.param](tmp_path / "sessions")
