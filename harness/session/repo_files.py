"""Sessions as files of one folder: JSONL or SQLite, one file each."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path

from harness.context import Context
from harness.environment import Environment
from harness.errors import SessionNotFound, StorageError
from harness.session.legacy_v3 import is_legacy, legacy_metadata, load_legacy
from harness.session.repo import Repository, sorted_by_age
from harness.session.rewrite import Keep, next_generation, rewrite_records
from harness.storage.file_lock import FileLock
from harness.storage.jsonl import CompactionPolicy, Durability, JsonlStorage
from harness.storage.jsonl_file import LoadedFile, load, read_jsonl_metadata, write_file
from harness.storage.memory_copy import MemorySnapshot, restore
from harness.storage.metadata import SessionMetadata
from harness.storage.migrations import CURRENT_SCHEMA, Schema
from harness.storage.protocol import Storage
from harness.storage.records import Record
from harness.storage.snapshot import Snapshot
from harness.storage.sqlite import LEASE_TTL_MS, SqliteStorage
from harness.storage.sqlite_copy import (
    SqliteSnapshot,
    delete_sqlite,
    read_sqlite_metadata,
    rewrite_sqlite,
)
from harness.storage.sqlite_create import write_sqlite
from harness.storage.sqlite_file import Synchronous

_log = logging.getLogger(__name__)


class FileSessions(Repository):
    """A folder of session files. A new file is named after its session; a file that came by copy
    may have any name, because its content says which session it is."""

    suffix: str

    def __init__(self, folder: Path, environment: Environment) -> None:
        super().__init__(environment)
        self.folder = folder

    @abstractmethod
    def _metadata_of(self, path: Path) -> SessionMetadata:
        """The metadata in a file; raises `StorageError`."""

    def _path_for_new(self, session_id: str) -> Path:
        return self.folder / f"{session_id}{self.suffix}"

    def _scan(self) -> dict[str, tuple[Path, SessionMetadata]]:
        found: dict[str, tuple[Path, SessionMetadata]] = {}
        if not self.folder.is_dir():
            return found
        for path in sorted(self.folder.glob(f"*{self.suffix}")):
            if path.name.startswith("."):
                continue  # still being built
            try:
                metadata = self._metadata_of(path)
            except StorageError as error:
                # One damaged file must not hide the others.
                _log.warning("%s is left out: %s", path, error)
                continue
            found.setdefault(metadata.id, (path, metadata))
        return found

    def _find(self, session_id: str) -> tuple[Path, SessionMetadata]:
        path = self._path_for_new(session_id)
        if path.is_file():
            metadata = self._metadata_of(path)
            if metadata.id == session_id:
                return path, metadata
        found = self._scan().get(session_id)
        if found is None:
            raise SessionNotFound(session_id)
        return found

    async def path_of(self, session_id: str) -> Path:
        """The session's file; raises `SessionNotFound`."""
        path, _ = await asyncio.to_thread(self._find, session_id)
        return path

    async def list(self, context: Context) -> list[SessionMetadata]:
        """Every session, oldest first. A file that cannot be read is left out, with a warning."""
        found = await asyncio.to_thread(self._scan)
        return sorted_by_age(metadata for _, metadata in found.values())

    async def get(self, session_id: str, context: Context) -> SessionMetadata:
        """A session's metadata; raises `SessionNotFound`."""
        _, metadata = await asyncio.to_thread(self._find, session_id)
        return metadata


class JsonlSessions(FileSessions):
    """A folder of JSONL files."""

    suffix = ".jsonl"

    def __init__(
        self,
        folder: Path,
        environment: Environment,
        *,
        durability: Durability = "process",
        policy: CompactionPolicy | None = None,
    ) -> None:
        super().__init__(folder, environment)
        self._durability: Durability = durability
        self._policy = policy or CompactionPolicy()

    def _metadata_of(self, path: Path) -> SessionMetadata:
        return legacy_metadata(path) if is_legacy(path) else read_jsonl_metadata(path)

    async def _build(
        self, metadata: SessionMetadata, records: Iterable[Record], *, next_seq: int = 1
    ) -> None:
        path = self._path_for_new(metadata.id)
        await asyncio.to_thread(write_file, path, metadata, records, next_seq=next_seq)

    async def _open_store(self, session_id: str) -> tuple[Storage, SessionMetadata]:
        storage = await JsonlStorage.open(
            await self.path_of(session_id),
            self._environment.clock,
            durability=self._durability,
            policy=self._policy,
            loader=load_any,
        )
        return storage, storage.metadata

    async def _snapshot(
        self, session_id: str, active: Storage | None
    ) -> tuple[SessionMetadata, Snapshot]:
        if isinstance(active, JsonlStorage) and not active.closed and not active.unconverted:
            return active.metadata, MemorySnapshot(active.state)
        # Nobody here writes to it: what the file holds now is one prefix of its history.
        loaded = await asyncio.to_thread(load_any, await self.path_of(session_id))
        if loaded.first_write_adds is not None:
            restore(loaded.state, loaded.first_write_adds)
        return loaded.metadata, MemorySnapshot(loaded.state)

    async def _remove(self, session_id: str) -> None:
        path = await self.path_of(session_id)
        lock = FileLock(path, session_id)
        try:
            path.unlink()
        finally:
            lock.release()

    async def _rewrite(self, session_id: str, keep: Keep) -> SessionMetadata:
        path = await self.path_of(session_id)
        lock = FileLock(path, session_id)
        try:
            return await asyncio.to_thread(_rewrite_jsonl, path, keep)
        finally:
            lock.release()


def load_any(path: Path, schema: Schema = CURRENT_SCHEMA) -> LoadedFile:
    """Read a session file of today's format or of the legacy one."""
    return load_legacy(path) if is_legacy(path) else load(path, schema)


def _rewrite_jsonl(path: Path, keep: Keep) -> SessionMetadata:
    loaded = load_any(path)
    if loaded.first_write_adds is not None:
        restore(loaded.state, loaded.first_write_adds)
    snapshot = MemorySnapshot(loaded.state)
    metadata = next_generation(loaded.metadata)
    write_file(
        path, metadata, rewrite_records(snapshot, keep), next_seq=snapshot.next_seq, replace=True
    )
    return metadata


class SqliteSessions(FileSessions):
    """A folder of SQLite files."""

    suffix = ".sqlite"

    def __init__(
        self,
        folder: Path,
        environment: Environment,
        *,
        synchronous: Synchronous = "full",
        lease_ttl_ms: int = LEASE_TTL_MS,
    ) -> None:
        super().__init__(folder, environment)
        self._synchronous: Synchronous = synchronous
        self._lease_ttl_ms = lease_ttl_ms

    def _metadata_of(self, path: Path) -> SessionMetadata:
        return read_sqlite_metadata(path)

    async def _build(
        self, metadata: SessionMetadata, records: Iterable[Record], *, next_seq: int = 1
    ) -> None:
        path = self._path_for_new(metadata.id)
        await asyncio.to_thread(write_sqlite, path, metadata, records, next_seq=next_seq)

    async def _open_store(self, session_id: str) -> tuple[Storage, SessionMetadata]:
        storage = await SqliteStorage.open(
            await self.path_of(session_id),
            self._environment.clock,
            synchronous=self._synchronous,
            lease_ttl_ms=self._lease_ttl_ms,
        )
        return storage, storage.metadata

    async def _snapshot(
        self, session_id: str, active: Storage | None
    ) -> tuple[SessionMetadata, Snapshot]:
        snapshot = await asyncio.to_thread(SqliteSnapshot, await self.path_of(session_id))
        return snapshot.metadata, snapshot

    async def _remove(self, session_id: str) -> None:
        await asyncio.to_thread(
            delete_sqlite,
            await self.path_of(session_id),
            self._environment.clock,
            self._lease_ttl_ms,
        )

    async def _rewrite(self, session_id: str, keep: Keep) -> SessionMetadata:
        def rewrite(
            snapshot: Snapshot, metadata: SessionMetadata
        ) -> tuple[SessionMetadata, Iterable[Record]]:
            return next_generation(metadata), rewrite_records(snapshot, keep)

        return await asyncio.to_thread(
            rewrite_sqlite,
            await self.path_of(session_id),
            self._environment.clock,
            self._lease_ttl_ms,
            rewrite,
        )
