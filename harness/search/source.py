"""Embedded repositories as a source for indexes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

from harness.clock import Clock
from harness.context import Context
from harness.errors import SessionNotFound
from harness.search.sync import SourcePage, SourceSession, page_of
from harness.session.repo import Repository
from harness.session.repo_files import FileSessions

# A file that was written to this recently may be written to again without its times changing.
_SETTLED_MS = 2_000


class RepositorySource:
    """Reads the sessions of a Memory, JSONL or SQLite repository without owning them."""

    def __init__(self, repository: Repository, clock: Clock) -> None:
        self._repository = repository
        self._clock = clock

    async def sessions(self, context: Context) -> AsyncIterator[SourceSession]:
        """Every session; files that cannot be read are left out, as the repository does."""
        for metadata in await self._repository.list(context):
            try:
                stamp = await self._stamp(metadata.id)
            except SessionNotFound:
                continue
            yield SourceSession(metadata, stamp)

    async def find(self, session_id: str, context: Context) -> SourceSession:
        """One session; raises `SessionNotFound`."""
        stamp = await self._stamp(session_id)
        return SourceSession(await self._repository.get(session_id, context), stamp)

    async def read(self, session_id: str, after_seq: int, context: Context) -> SourcePage:
        """One page. The snapshot is held only while it is read: a reader keeps a file from going."""
        async with self._repository.snapshot(session_id, context) as (metadata, snapshot):
            return await asyncio.to_thread(
                lambda: page_of(metadata, snapshot.entries(after_seq), after_seq)
            )

    async def _stamp(self, session_id: str) -> str | None:
        if not isinstance(self._repository, FileSessions):
            return None
        path = await self._repository.path_of(session_id)
        return await asyncio.to_thread(_file_stamp, path, self._clock.now_ms())


def _file_stamp(path: Path, now_ms: int) -> str | None:
    """Size and times of a session's file and of its write-ahead log; None while they may lie."""
    parts: list[str] = []
    for file in (path, path.with_name(f"{path.name}-wal")):
        try:
            found = file.stat()
        except FileNotFoundError:
            continue
        if abs(now_ms - found.st_mtime_ns // 1_000_000) < _SETTLED_MS:
            return None
        parts.append(f"{found.st_ino}:{found.st_size}:{found.st_mtime_ns}")
    return ",".join(parts) or None
