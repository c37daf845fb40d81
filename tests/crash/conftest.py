"""The backends on which scenarios are played."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from harness.testing.playing import DurableSession
from tests.crash.sessions import JsonlSession, MemorySession, PostgresSession, SqliteSession
from tests.runtime.stage import Stage
from tests.storage_pg.kit import Kit

NewSession = Callable[[], DurableSession]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: processes die here, machines do not."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as made:
        yield Path(made)


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgres"])
async def new_session(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[NewSession]:
    """Makes a place for one play, on each backend."""
    numbers = itertools.count()
    match request.param:
        case "memory":
            yield MemorySession
        case "jsonl":
            yield lambda: JsonlSession(folder / f"{next(numbers)}.jsonl")
        case "sqlite":
            yield lambda: SqliteSession(folder / f"{next(numbers)}.sqlite")
        case _:
            kit = await Kit.open(request.getfixturevalue("database"))
            yield lambda: PostgresSession(kit)
            await kit.close()


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """A harness on recorded memory and virtual time."""
    made = Stage()
    yield made
    await made.close()
