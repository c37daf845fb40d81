"""Export and import of whole sessions, between any two backends: streamed, counted, digested (§2.8, design §7).

The exchange form is a JSONL format 4 file (see `harness.session.export_file`). It is spooled to a
temporary file on either side: a source is held only while it is read, however slow the receiver,
and a target sees nothing of a file that never arrives whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from harness.context import Context
from harness.errors import InvalidArgument, StorageError
from harness.session.export_file import (
    OpenOperations,
    Summary,
    Tally,
    TargetDiffers,
    export_header,
    open_incoming,
    summarize,
    write_lines,
)
from harness.storage.metadata import STORAGE_VERSION, SessionMetadata
from harness.storage.records import Record
from harness.storage.snapshot import Snapshot

_CHUNK = 1 << 18


class ExportSource(Protocol):
    """Where sessions can be read as of one instant. Every `Repository` is one."""

    def snapshot(
        self, session_id: str, context: Context
    ) -> AbstractAsyncContextManager[tuple[SessionMetadata, Snapshot]]:
        """All of a session; raises `SessionNotFound`."""
        ...


class ImportTarget(ExportSource, Protocol):
    """Where sessions can be made from records. Every `Repository` is one."""

    async def restore(
        self,
        metadata: SessionMetadata,
        records: Iterable[Record],
        next_seq: int,
        context: Context,
    ) -> None:
        """Make a session of just these records, whole or not at all, and leave it closed.

        `records` blocks, so it is read on a thread. Raises `InvalidArgument` for an id that is taken
        or that this backend cannot have, and what `records` raises.
        """
        ...

    async def delete(self, metadata: SessionMetadata, context: Context) -> None:
        """Remove a session."""
        ...


class TransferTooLarge(InvalidArgument):
    """The file is larger than the receiver takes."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How a file becomes a session.

    `id` is the new session's id, None the one in the file. An open operation is refused unless
    "keep" is asked for, which is right only when the original will never be driven again: otherwise
    two processes would do the same work. `max_bytes` bounds what is accepted.
    """

    id: str | None = None
    operations: OpenOperations = "refuse"
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """A file that arrived whole; `sha256` (hex) is of all its bytes."""

    path: Path
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Imported:
    """The session that was made and what it holds."""

    metadata: SessionMetadata
    summary: Summary


class Export:
    """A complete export, ready to be sent as often as wanted while it is open."""

    def __init__(self, metadata: SessionMetadata, summary: Summary, path: Path, size: int) -> None:
        self.metadata = metadata
        self.summary = summary
        self.path = path
        self.size = size

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The file, piece by piece; `size` bytes in all."""
        with self.path.open("rb") as file:
            while chunk := await asyncio.to_thread(file.read, _CHUNK):
                yield chunk


@asynccontextmanager
async def open_export(
    source: ExportSource, session_id: str, context: Context
) -> AsyncGenerator[Export]:
    """Take a session out of its backend, whoever is writing to it.

    Raises `SessionNotFound`, `StorageCorrupt`, `NewerVersion`.
    """
    async with _folder() as folder:
        async with source.snapshot(session_id, context) as (metadata, snapshot):
            summary, size = await asyncio.to_thread(_spool, folder, metadata, snapshot)
        yield Export(metadata, summary, folder / "session.jsonl", size)


def _spool(folder: Path, metadata: SessionMetadata, snapshot: Snapshot) -> tuple[Summary, int]:
    body, whole = folder / "body", folder / "session.jsonl"
    with body.open("wb") as file:
        summary = write_lines(file, snapshot.records())
    # The header comes first and says what follows: it can be written only now.
    with whole.open("wb") as file, body.open("rb") as below:
        file.write(export_header(metadata, snapshot.next_seq, summary))
        shutil.copyfileobj(below, file, _CHUNK)
        size = file.tell()
    body.unlink()
    return summary, size


async def import_session(
    target: ImportTarget,
    chunks: AsyncIterable[bytes],
    options: ImportOptions,
    context: Context,
) -> Imported:
    """Make a session from an export, from a session's JSONL file, or from a legacy session's file.

    The new session is closed; it is read back and compared before this returns. Raises
    `TransferDamaged` and `StorageCorrupt` for what is not whole or cannot be, `InvalidArgument` for
    an id that is taken or an open operation, `NewerVersion`, `TransferTooLarge`; nothing is left then.
    """
    async with receive(chunks, options.max_bytes) as arrival:
        return await import_file(target, arrival.path, options, context)


async def copy_session(
    source: ExportSource,
    session_id: str,
    target: ImportTarget,
    options: ImportOptions,
    context: Context,
) -> Imported:
    """Export a session from one backend and import it into another; raises what either raises."""
    async with open_export(source, session_id, context) as export:
        return await import_file(target, export.path, options, context)


@asynccontextmanager
async def receive(
    chunks: AsyncIterable[bytes], max_bytes: int | None = None
) -> AsyncGenerator[Arrival]:
    """Take a file in, however slow its sender, before anything is made of it. It is gone after the
    block. Raises `TransferTooLarge`."""
    async with _folder() as folder:
        path, size, digest = folder / "session.jsonl", 0, hashlib.sha256()
        with path.open("wb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if max_bytes is not None and size > max_bytes:
                    raise TransferTooLarge(f"the file has more than {max_bytes} bytes")
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        yield Arrival(path, size, digest.hexdigest())


async def import_file(
    target: ImportTarget, path: Path, options: ImportOptions, context: Context
) -> Imported:
    """Make a session from a file that is here; raises what `import_session` raises."""
    tally = Tally()
    incoming = await asyncio.to_thread(open_incoming, path, options.operations)
    try:
        metadata = msgspec.structs.replace(
            incoming.metadata,
            id=incoming.metadata.id if options.id is None else options.id,
            storage_version=STORAGE_VERSION,
        )
        records = tally.counting(incoming.records)
        await target.restore(metadata, records, incoming.next_seq, context)
    finally:
        incoming.close()
    try:
        await _compare(target, metadata, tally, incoming.next_seq, context)
    except BaseException:
        # Unless somebody works on it already: then it is theirs.
        with suppress(StorageError):
            await target.delete(metadata, context)
        raise
    return Imported(metadata, tally.summary())


async def _compare(
    target: ImportTarget, metadata: SessionMetadata, tally: Tally, next_seq: int, context: Context
) -> None:
    """Read the new session back; raises `TargetDiffers` unless it holds what it was given."""
    given = tally.summary()
    async with target.snapshot(metadata.id, context) as (_, snapshot):
        if snapshot.next_seq > max(next_seq, tally.last_seq + 1):
            return  # an operation that came along is driven already: it holds more
        arrived = await asyncio.to_thread(summarize, snapshot)
    if arrived != given:
        raise TargetDiffers(
            f"the target holds other records ({arrived.records}) than it was given ({given.records})"
        )


@asynccontextmanager
async def _folder() -> AsyncGenerator[Path]:
    """A folder for this transfer alone, readable by nobody else, gone afterwards."""
    path = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=f"laneway-{os.getpid()}-"))
    try:
        yield path
    finally:
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
