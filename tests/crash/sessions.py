"""Where the scenarios' sessions live: one class per backend, a new object for each play."""

from __future__ import annotations

from pathlib import Path

from harness.clock import SystemClock
from harness.errors import LeaseLost
from harness.storage.jsonl import JsonlStorage
from harness.storage.jsonl_file import create_jsonl
from harness.storage.memory import MemoryStorage
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import Storage
from harness.storage.sqlite import SqliteStorage
from harness.storage.sqlite_create import create_sqlite
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit


class MemorySession:
    """Maps that outlive their owner; they live in the process that plays."""

    keeps_frames = True

    def __init__(self) -> None:
        self._storage = MemoryStorage(SystemClock())

    async def create(self) -> Storage:
        return self._storage

    async def reopen(self) -> Storage:
        return MemoryStorage(SystemClock(), self._storage.state)


class JsonlSession:
    """A file whose writer was killed."""

    keeps_frames = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: JsonlStorage | None = None

    async def create(self) -> Storage:
        create_jsonl(self._path, SessionMetadata(id=self._path.stem, created_at=1))
        return await self.reopen()

    async def reopen(self) -> Storage:
        if self._open is not None:
            await self._open.abandon()
        self._open = await JsonlStorage.open(self._path, SystemClock())
        return self._open


class SqliteSession:
    """A file whose writer was killed, with its lease still in it."""

    keeps_frames = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: SqliteStorage | None = None

    async def create(self) -> Storage:
        create_sqlite(self._path, SessionMetadata(id=self._path.stem, created_at=1))
        return await self.reopen()

    async def reopen(self) -> Storage:
        if self._open is not None:
            await self._open.abandon()
        self._open = await SqliteStorage.open(self._path, SystemClock(), synchronous="normal")
        return self._open


class PostgresSession:
    """A session that this host claims again after its owner in this process died."""

    keeps_frames = False

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._id = ""
        self._open: PostgresStorage | None = None

    async def create(self) -> Storage:
        self._id = (await self._kit.sessions.create(self._kit.tenant)).id
        return await self.reopen()

    async def reopen(self) -> Storage:
        if self._open is not None:
            # What losing the lease connection does, without the price of a new one for each death.
            self._open.lose(LeaseLost())
            await self._kit.lease.release(self._id)
        owned = await self._kit.sessions.open(self._kit.tenant, self._id)
        self._open = owned.storage
        return self._open
