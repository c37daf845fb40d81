"""How each embedded backend is created, reopened and crashed under the conformance suite."""

from __future__ import annotations

from pathlib import Path

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.jsonl import CompactionPolicy, Durability, JsonlStorage
from harness.storage.jsonl_file import create_jsonl
from harness.storage.memory import MemoryStorage
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import Storage
from harness.storage.sqlite import SqliteStorage
from harness.storage.sqlite_create import create_sqlite
from harness.testing.conformance import Capabilities


class MemoryBackend:
    """Maps that survive the storage object, in this process only."""

    name = "memory"
    capabilities = Capabilities(physical_reclaim=True)

    def __init__(self, folder: Path) -> None:
        self._current: MemoryStorage | None = None

    async def create(self) -> Storage:
        self._current = MemoryStorage(SystemClock())
        return self._current

    async def reopen(self) -> Storage:
        assert self._current is not None
        self._current = MemoryStorage(SystemClock(), self._current.state)
        return self._current

    async def crash(self) -> Storage:
        raise NotImplementedError("memory dies with its process")

    async def dispose(self) -> None:
        if self._current is not None:
            await self._current.close(BACKGROUND)


class SqliteBackend:
    """One file per session."""

    name = "sqlite"
    capabilities = Capabilities(durable=True, multi_process_lease=True, physical_reclaim=True)

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._open: list[SqliteStorage] = []

    @property
    def _path(self) -> Path:
        return self._folder / f"session-{self._count}.sqlite"

    async def create(self) -> Storage:
        self._count += 1
        create_sqlite(self._path, SessionMetadata(id=f"s{self._count}", created_at=1))
        return await self.reopen()

    async def reopen(self) -> Storage:
        storage = await SqliteStorage.open(self._path, SystemClock())
        self._open.append(storage)
        return storage

    async def crash(self) -> Storage:
        await self._open[-1].abandon()
        return await self.reopen()

    async def dispose(self) -> None:
        for storage in self._open:
            await storage.close(BACKGROUND)


class JsonlBackend:
    """One readable file per session."""

    name = "jsonl"
    capabilities = Capabilities(durable=True, multi_process_lease=True)
    durability: Durability = "process"
    policy = CompactionPolicy()

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._open: list[JsonlStorage] = []

    @property
    def _path(self) -> Path:
        return self._folder / f"session-{self._count}.jsonl"

    async def create(self) -> Storage:
        self._count += 1
        create_jsonl(self._path, SessionMetadata(id=f"s{self._count}", created_at=1))
        return await self.reopen()

    async def reopen(self) -> Storage:
        storage = await JsonlStorage.open(
            self._path, SystemClock(), durability=self.durability, policy=self.policy
        )
        self._open.append(storage)
        return storage

    async def crash(self) -> Storage:
        await self._open[-1].abandon()
        return await self.reopen()

    async def dispose(self) -> None:
        for storage in self._open:
            await storage.close(BACKGROUND)


class EagerJsonlBackend(JsonlBackend):
    """The same, compacting at every chance and forcing every line to the disk."""

    name = "jsonl-eager"
    durability: Durability = "fsync"
    policy = CompactionPolicy(min_dead_bytes=0, dead_share=0.0)
