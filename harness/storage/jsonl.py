"""The JSONL backend: one readable file per session that replays into the Memory maps (§1.7)."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from harness.clock import Clock
from harness.context import Context
from harness.errors import SessionNotFound, StorageError
from harness.storage.file_lock import FileLock
from harness.storage.jsonl_file import LoadedFile, load, write_file
from harness.storage.jsonl_format import encode_write, transaction_line
from harness.storage.memory_copy import MemorySnapshot, restore
from harness.storage.metadata import SessionMetadata
from harness.storage.migrations import CURRENT_SCHEMA, Schema
from harness.storage.prepared import (
    Prepared,
    PreparedElement,
    PreparedValue,
    prepare,
)
from harness.storage.protocol import CommitResult
from harness.storage.replayed import ReplayedStorage
from harness.storage.writes import DeleteList, DeleteValue, Write
from harness.usage import ZERO_USAGE, SessionStats, UsageRow

T = TypeVar("T")

Durability: TypeAlias = Literal["process", "fsync"]
Loader: TypeAlias = Callable[[Path, Schema], LoadedFile]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """When the file is rewritten with live content only: both bounds must be exceeded.

    `min_dead_bytes` keeps small sessions alone; `dead_share` (0 to 1) of the file makes the cost of
    rewriting proportional to what was written since.
    """

    min_dead_bytes: int = 256 * 1024
    dead_share: float = 0.5


class JsonlStorage(ReplayedStorage):
    """An open session file. Reads are served from memory, a commit appends one line.

    Durability "process" survives the death of the process; "fsync" survives the machine's.
    """

    def __init__(
        self,
        path: Path,
        clock: Clock,
        loaded: LoadedFile,
        lock: FileLock,
        durability: Durability,
        policy: CompactionPolicy,
    ) -> None:
        super().__init__(clock, loaded.state)
        self.path = path
        self.metadata: SessionMetadata = loaded.metadata
        self._lock = lock
        self._durability = durability
        self._policy = policy
        self._live = loaded.live
        self._bytes = loaded.valid_bytes
        self._first_write_adds = loaded.first_write_adds
        self._descriptor = _open_for_append(path)
        self._turn = asyncio.Lock()
        self._jobs: set[asyncio.Task[Any]] = set()
        self._broken: str | None = None
        self._released = False

    @staticmethod
    async def open(
        path: Path,
        clock: Clock,
        *,
        durability: Durability = "process",
        policy: CompactionPolicy = CompactionPolicy(),
        schema: Schema = CURRENT_SCHEMA,
        loader: Loader = load,
    ) -> JsonlStorage:
        """Open a session for writing, migrated to the version of `schema`.

        `loader` reads the file; it may know formats that this module does not.

        Raises `SessionNotFound`, `SessionInUse` with the holder, `NewerVersion`, or
        `StorageCorrupt` with line and byte offset. A torn last line is cut off here; a file whose
        dead bytes exceed the policy is compacted here.
        """
        lock = _claim(path)
        try:
            loaded = await asyncio.to_thread(_load_for_writing, path, schema, loader)
            storage = JsonlStorage(path, clock, loaded, lock, durability, policy)
        except BaseException:
            lock.release()
            raise
        if storage.past_threshold:
            # Queued before any commit, and nobody has to wait for it.
            storage.spawn(storage.compact_if_due())
        return storage

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return self._bytes

    @property
    def unconverted(self) -> bool:
        """Whether the file still has its legacy form, which the first write replaces."""
        return self._first_write_adds is not None

    @property
    def dead_bytes(self) -> int:
        """Bytes of the file that compaction would remove."""
        return self._bytes - self._live.total

    # Writing

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        self._open()
        prepared = prepare(writes)
        return await self._in_turn(lambda: self._commit(writes, prepared))

    async def _in_turn(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run work after all earlier work, to its end even when the caller goes away."""

        async def job() -> T:
            async with self._turn:
                return await work()

        task = asyncio.get_running_loop().create_task(job())
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)
        return await asyncio.shield(task)

    async def _commit(self, writes: Sequence[Write], prepared: list[Prepared]) -> CommitResult:
        if self._broken is not None:
            raise StorageError(f"{self.path}: {self._broken}; open the session again")
        state = self._state
        state.check(writes)
        now = self._clock.now_ms()
        if not writes:
            return state.apply(writes, now)
        if self._first_write_adds is not None:
            await self._replace_legacy(self._first_write_adds)
        pieces = [
            encode_write(write, seq, now).encode()
            for seq, write in enumerate(prepared, start=state.next_seq)
        ]
        line = transaction_line(pieces)
        self._append(line)
        if self._durability == "fsync":
            await self._sync()
        result = state.apply(writes, now)
        self._account(prepared, pieces, len(line))
        if self._is_due(writes):
            # Queued behind this commit, whose caller need not wait for it.
            self.spawn(self.compact_if_due())
        return result

    async def _replace_legacy(self, row: UsageRow) -> None:
        """Put a file of today's format in the place of a legacy one.

        The totals counted from its entries become a ledger row, so that they stay what they were.
        """
        self._state.stats = SessionStats(
            message_count=self._state.stats.message_count, usage=ZERO_USAGE
        )
        restore(self._state, msgspec.structs.replace(row, seq=self._state.next_seq))
        try:
            await self._compact()
        except OSError as error:
            self._broken = "the legacy file could not be replaced"
            raise StorageError(f"{self.path}: {self._broken}: {error}") from error
        self._first_write_adds = None

    def _append(self, line: bytes) -> None:
        """Write one line; on failure the file is as it was, or the storage is broken."""
        try:
            written = os.write(self._descriptor, line)
            while written < len(line):
                written += os.write(self._descriptor, line[written:])
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, self._bytes)
            except OSError:
                self._broken = "a half-written line could not be taken back"
            raise StorageError(f"{self.path}: cannot write: {error}") from error

    async def _sync(self) -> None:
        try:
            await asyncio.to_thread(os.fsync, self._descriptor)
        except OSError as error:
            # Whether the line will be there is unknown now; only the file can tell.
            self._broken = "an fsync failed"
            raise StorageError(f"{self.path}: cannot make the write durable: {error}") from error

    def _account(self, prepared: list[Prepared], pieces: list[bytes], line_bytes: int) -> None:
        self._bytes += line_bytes
        live = self._live
        for write, piece in zip(prepared, pieces, strict=True):
            size = len(piece) + 1
            match write:
                case PreparedValue(namespace=namespace, key=key):
                    live.set_value((namespace, key), size)
                case PreparedElement(namespace=namespace, key=key):
                    live.append((namespace, key), size)
                case DeleteValue(namespace=namespace, key=key):
                    live.delete("value", (namespace, key))
                case DeleteList(namespace=namespace, key=key):
                    live.delete("list", (namespace, key))
                case _:
                    live.add_fixed(size)

    # Compaction

    def _is_due(self, writes: Sequence[Write]) -> bool:
        """Whether these writes end something and left the file mostly dead."""
        return self.past_threshold and any(
            isinstance(write, DeleteValue | DeleteList) for write in writes
        )

    @property
    def past_threshold(self) -> bool:
        """Whether compaction is worth its cost."""
        if self._first_write_adds is not None:
            return False  # only a write may change a legacy file
        dead = self.dead_bytes
        return dead > self._policy.min_dead_bytes and dead > self._policy.dead_share * self._bytes

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work of this storage's own; `close` waits for its turn to end."""
        task = asyncio.get_running_loop().create_task(work)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    async def compact_if_due(self) -> None:
        """Compact in turn, unless that is no longer worth it; a failure leaves the old file."""
        async with self._turn:
            if self._released or self._broken is not None or not self.past_threshold:
                return
            try:
                await self._compact()
            except (OSError, StorageError) as error:
                # The old file is untouched and complete; the next boundary tries again.
                _log.warning("session %s was not compacted: %s", self.metadata.id, error)

    async def compact(self, context: Context) -> None:
        """Rewrite the file with live content only; sequence numbers and list cursors stay."""
        self._open()
        await self._in_turn(self._compact_now)

    async def _compact_now(self) -> None:
        if self._first_write_adds is not None:
            await self._replace_legacy(self._first_write_adds)
        else:
            await self._compact()

    async def _compact(self) -> None:
        snapshot = MemorySnapshot(self._state)
        self._live = await asyncio.to_thread(
            write_file,
            self.path,
            self.metadata,
            snapshot.records(),
            next_seq=snapshot.next_seq,
            replace=True,
        )
        os.close(self._descriptor)
        self._descriptor = _open_for_append(self.path)
        self._bytes = self._live.total

    # Ending

    async def close(self, context: Context) -> None:
        self._closed = True
        await self._in_turn(self._release)

    async def _release(self) -> None:
        if not self._released:
            self._released = True
            os.close(self._descriptor)
            self._lock.release()

    async def abandon(self) -> None:
        """Let go of the file as a killed process would, for crash tests: the lock file stays."""
        self._closed = True
        await self._in_turn(self._let_go)

    async def _let_go(self) -> None:
        if not self._released:
            self._released = True
            os.close(self._descriptor)
            self._lock.abandon()


def _claim(path: Path) -> FileLock:
    if not path.is_file():
        raise SessionNotFound(str(path))
    return FileLock(path, path.stem)


def _load_for_writing(path: Path, schema: Schema, loader: Loader) -> LoadedFile:
    """Read the file, and rewrite it when it is of an older version.

    The rename puts the new version and the converted content in place together, and retires the
    bytes of the old one.
    """
    loaded = loader(path, schema)
    if loaded.first_write_adds is not None:
        return loaded
    if loaded.is_current:
        _mend(path, loaded)
        return loaded
    snapshot = MemorySnapshot(loaded.state)
    live = write_file(
        path, loaded.metadata, snapshot.records(), next_seq=snapshot.next_seq, replace=True
    )
    return LoadedFile(loaded.metadata, loaded.state, live, live.total, live.total)


def _mend(path: Path, loaded: LoadedFile) -> None:
    """Cut a torn line off, and end a whole last line that has no line end, before anything follows."""
    with path.open("r+b") as file:
        if loaded.valid_bytes < loaded.file_bytes:
            file.truncate(loaded.valid_bytes)
        if not loaded.ends_with_newline:
            file.seek(loaded.valid_bytes)
            file.write(b"\n")
            loaded.valid_bytes += 1


def _open_for_append(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
