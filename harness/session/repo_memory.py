"""Sessions in this process's memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from harness.context import Context
from harness.environment import Environment
from harness.errors import InvalidArgument, SessionNotFound
from harness.session.repo import Repository, sorted_by_age
from harness.session.rewrite import Keep, next_generation, rewrite_records
from harness.storage.memory import MemoryState
from harness.storage.memory_copy import MemorySnapshot, restore
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import Storage
from harness.storage.records import Record
from harness.storage.replayed import ReplayedStorage
from harness.storage.snapshot import Snapshot


class MemorySessions(Repository):
    """A repository that dies with the process."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._stores: dict[str, tuple[SessionMetadata, MemoryState]] = {}

    def _store(self, session_id: str) -> tuple[SessionMetadata, MemoryState]:
        found = self._stores.get(session_id)
        if found is None:
            raise SessionNotFound(session_id)
        return found

    async def _build(
        self, metadata: SessionMetadata, records: Iterable[Record], *, next_seq: int = 1
    ) -> None:
        if metadata.id in self._stores:
            raise InvalidArgument(f"session {metadata.id} exists already")
        self._stores[metadata.id] = (metadata, await asyncio.to_thread(_filled, records, next_seq))

    async def _open_store(self, session_id: str) -> tuple[Storage, SessionMetadata]:
        metadata, state = self._store(session_id)
        return ReplayedStorage(self._environment.clock, state), metadata

    async def _snapshot(
        self, session_id: str, active: Storage | None
    ) -> tuple[SessionMetadata, Snapshot]:
        metadata, state = self._store(session_id)
        return metadata, MemorySnapshot(state)

    async def _remove(self, session_id: str) -> None:
        self._store(session_id)
        del self._stores[session_id]

    async def _rewrite(self, session_id: str, keep: Keep) -> SessionMetadata:
        metadata, state = self._store(session_id)
        snapshot = MemorySnapshot(state)
        kept = await asyncio.to_thread(
            lambda: _filled(rewrite_records(snapshot, keep), snapshot.next_seq)
        )
        rewritten = next_generation(metadata)
        self._stores[session_id] = (rewritten, kept)
        return rewritten

    async def list(self, context: Context) -> list[SessionMetadata]:
        """Every session, oldest first."""
        return sorted_by_age(metadata for metadata, _ in self._stores.values())

    async def get(self, session_id: str, context: Context) -> SessionMetadata:
        """A session's metadata; raises `SessionNotFound`."""
        return self._store(session_id)[0]


def _filled(records: Iterable[Record], next_seq: int) -> MemoryState:
    state = MemoryState()
    for record in records:
        restore(state, record)
    state.next_seq = max(state.next_seq, next_seq)
    return state
