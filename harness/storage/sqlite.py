"""The SQLite backend: one file per session, one writer with a fenced lease, one thread (§1.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from harness.clock import Clock
from harness.context import Context
from harness.entries import Entry, EntryStructure
from harness.errors import StorageClosed
from harness.storage.address import Value, ValueList
from harness.storage.metadata import SessionMetadata
from harness.storage.migrations import CURRENT_SCHEMA, Schema
from harness.storage.prepared import prepare
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    EntryScan,
    ListElement,
    ListRead,
    StoredValue,
    UsageScan,
    check_limit,
    page_limit,
)
from harness.storage.sqlite_file import SqliteFile, Synchronous, translated
from harness.storage.worker import Worker
from harness.storage.writes import Write
from harness.usage import SessionStats, UsageRow

T = TypeVar("T")

LEASE_TTL_MS = 30_000


class SqliteStorage:
    """An open session file. `synchronous` "full" survives power loss, "normal" may lose the newest commits."""

    def __init__(self, path: Path, file: SqliteFile, worker: Worker) -> None:
        self.path = path
        self._file = file
        self._worker = worker
        self._closed = False
        self._released: asyncio.Future[None] | None = None

    @staticmethod
    async def open(
        path: Path,
        clock: Clock,
        *,
        synchronous: Synchronous = "full",
        lease_ttl_ms: int = LEASE_TTL_MS,
        schema: Schema = CURRENT_SCHEMA,
    ) -> SqliteStorage:
        """Open a session for writing, migrated to the version of `schema`.

        Raises `SessionNotFound`, `SessionInUse` with the holder, `NewerVersion` or `StorageCorrupt`. The lease is
        renewed by commits and, while there are none, every third of `lease_ttl_ms`.
        """
        opened: list[SqliteFile] = []

        def renew() -> None:
            for file in opened:
                file.renew_lease()

        def open_file() -> SqliteFile:
            file = SqliteFile(
                path, clock, synchronous=synchronous, lease_ttl_ms=lease_ttl_ms, schema=schema
            )
            opened.append(file)
            return file

        def close_again() -> None:
            for file in opened:
                file.close()

        worker = Worker(f"sqlite:{path.name}", renew, lease_ttl_ms / 3_000)
        try:
            file = await worker.submit(open_file)
        except BaseException:
            # A cancelled caller must not leave a file behind that nobody can open for a while.
            worker.submit(close_again)
            worker.stop()
            raise
        return SqliteStorage(path, file, worker)

    @property
    def metadata(self) -> SessionMetadata:
        """The session's metadata as read at opening."""
        return self._file.metadata

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def _run(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise StorageClosed

        def work() -> T:
            with translated():
                return call()

        return await self._worker.submit(work)

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        if self._closed:
            raise StorageClosed
        prepared = prepare(writes)
        return await self._run(lambda: self._file.commit(prepared))

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        return await self._run(lambda: self._file.get_entries(ids))

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        return await self._run(lambda: self._file.get_value(address))

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        return await self._run(lambda: self._file.scan_values(prefix))

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        read = options or ListRead()
        page_limit(read.limit)
        return await self._run(lambda: self._file.read_list(address, read))

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        check_limit(query.limit)
        return await self._run(lambda: self._file.scan_branch(query))

    async def scan_branch_structure(
        self, query: BranchScan, context: Context
    ) -> list[EntryStructure]:
        check_limit(query.limit)
        return await self._run(lambda: self._file.scan_branch_structure(query))

    async def scan_entries(self, query: EntryScan, context: Context) -> list[Entry]:
        check_limit(query.limit)
        return await self._run(lambda: self._file.scan_entries(query))

    async def scan_usage(self, query: UsageScan, context: Context) -> list[UsageRow]:
        check_limit(query.limit)
        return await self._run(lambda: self._file.scan_usage(query))

    async def get_stats(self, context: Context) -> SessionStats:
        return await self._run(self._file.get_stats)

    async def repair_branch_index(self, context: Context) -> int:
        """Rebuild the branch index from the entries (§2.6); returns the number of entries."""
        return await self._run(self._file.repair_branch_index)

    async def close(self, context: Context) -> None:
        self._closed = True
        if self._released is None:
            self._released = self._worker.submit(self._file.close)
            self._worker.stop()
        await asyncio.shield(self._released)

    async def abandon(self) -> None:
        """Let go of the file as a killed process would, for crash tests: the lease stays behind."""
        self._closed = True
        if self._released is None:
            self._released = self._worker.submit(self._file.abandon)
            self._worker.stop()
        await asyncio.shield(self._released)
