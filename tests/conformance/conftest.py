"""The backends under test: one line each in `BACKENDS`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

pytest.register_assert_rewrite("harness.testing.conformance")

from harness.testing.conformance import StorageBackend  # noqa: E402  # after the rewrite hook
from tests.conformance.backends import EagerJsonlBackend, JsonlBackend, MemoryBackend, SqliteBackend  # noqa: E402

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
