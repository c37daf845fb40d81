"""Repositories: which sessions there are, and who has one open (§2.8)."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from harness.context import Context
from harness.environment import Environment
from harness.errors import InvalidArgument, SessionInUse
from harness.session.fork import ForkOptions, fork_records, initial_records
from harness.session.rewrite import Keep
from harness.session.session import Session
from harness.storage.metadata import STORAGE_VERSION, SessionMetadata
from harness.storage.protocol import Storage
from harness.storage.records import Record
from harness.storage.snapshot import Snapshot

_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """What a caller may say about a new session. `metadata` is JSON of the application's own."""

    id: str | None = None
    cwd: str | None = None
    parent_session_id: str | None = None
    # Any: application JSON; the harness never looks inside.
    metadata: dict[str, Any] | None = None


class SessionRepo(Protocol):
    """Discovery and lifecycle of sessions. A session has one open owner at a time."""

    async def create(self, options: CreateOptions, context: Context) -> Session:
        """A new session, open, with a main lane at the root; raises `InvalidArgument` for a taken id."""
        ...

    async def open(self, metadata: SessionMetadata, context: Context) -> Session:
        """Open a session; raises `SessionInUse`, `SessionNotFound`, `NewerVersion`, `StorageCorrupt`."""
        ...

    async def get(self, session_id: str, context: Context) -> SessionMetadata:
        """A session's metadata; raises `SessionNotFound`."""
        ...

    async def list(self, context: Context) -> list[SessionMetadata]:
        """Every session, oldest first."""
        ...

    async def delete(self, metadata: SessionMetadata, context: Context) -> None:
        """Remove a session for good; raises `SessionInUse` and `SessionNotFound`."""
        ...

    async def fork(
        self, source: SessionMetadata, options: ForkOptions, context: Context
    ) -> Session:
        """A new open session from a coherent picture of the source, which may be in use (§2.7)."""
        ...

    async def rewrite(
        self, metadata: SessionMetadata, keep: Keep, context: Context
    ) -> SessionMetadata:
        """Replace a session's store by what `keep` retains (§2.9); raises `SessionInUse`."""
        ...


class Repository(ABC):
    """What all embedded repositories do alike; a subclass says where the stores are."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._taken: set[str] = set()
        self._open: dict[str, Storage] = {}

    # What a subclass provides

    @abstractmethod
    async def _build(
        self, metadata: SessionMetadata, records: Iterable[Record], *, next_seq: int = 1
    ) -> None:
        """Make a new store that holds just these records, whole or not at all."""

    @abstractmethod
    async def _open_store(self, session_id: str) -> tuple[Storage, SessionMetadata]:
        """Open a store as its one writer."""

    @abstractmethod
    async def _snapshot(
        self, session_id: str, active: Storage | None
    ) -> tuple[SessionMetadata, Snapshot]:
        """A coherent picture of a store; `active` is its open storage when this repository has it."""

    @abstractmethod
    async def _remove(self, session_id: str) -> None:
        """Remove a store that nobody has open."""

    @abstractmethod
    async def _rewrite(self, session_id: str, keep: Keep) -> SessionMetadata:
        """Replace a store that nobody has open."""

    @abstractmethod
    async def list(self, context: Context) -> list[SessionMetadata]:
        """Every session, oldest first."""

    @abstractmethod
    async def get(self, session_id: str, context: Context) -> SessionMetadata:
        """A session's metadata; raises `SessionNotFound`."""

    # What follows from it

    async def create(self, options: CreateOptions, context: Context) -> Session:
        """A new session, open, with a main lane at the root; raises `InvalidArgument` for a taken id."""
        metadata = SessionMetadata(
            id=self._new_id(options.id),
            created_at=self._environment.clock.now_ms(),
            storage_version=STORAGE_VERSION,
            cwd=options.cwd,
            parent_session_id=options.parent_session_id,
            metadata=options.metadata,
        )
        with self._claimed(metadata.id):
            await self._build(metadata, initial_records())
            return await self._opened(metadata.id)

    async def open(self, metadata: SessionMetadata, context: Context) -> Session:
        """Open a session; raises `SessionInUse`, `SessionNotFound`, `NewerVersion`, `StorageCorrupt`."""
        with self._claimed(metadata.id):
            return await self._opened(metadata.id)

    async def delete(self, metadata: SessionMetadata, context: Context) -> None:
        """Remove a session for good; raises `SessionInUse` and `SessionNotFound`."""
        with self._claimed(metadata.id):
            await self._remove(metadata.id)
            self._taken.discard(metadata.id)

    async def fork(
        self, source: SessionMetadata, options: ForkOptions, context: Context
    ) -> Session:
        """A new open session from a coherent picture of the source, which may be in use (§2.7)."""
        origin = await self.get(source.id, context)
        metadata = SessionMetadata(
            id=self._new_id(options.id),
            created_at=self._environment.clock.now_ms(),
            storage_version=STORAGE_VERSION,
            cwd=origin.cwd,
            parent_session_id=origin.id,
            metadata=origin.metadata,
        )
        with self._claimed(metadata.id):
            async with self.snapshot(origin.id, context) as (_, snapshot):
                await self._build(metadata, fork_records(snapshot, options))
            return await self._opened(metadata.id)

    @asynccontextmanager
    async def snapshot(
        self, session_id: str, context: Context
    ) -> AsyncGenerator[tuple[SessionMetadata, Snapshot]]:
        """All of a session as of one instant, whoever is writing to it; read it on a thread, soon.

        Raises `SessionNotFound`, `StorageCorrupt`, `NewerVersion`, and `SessionInUse` when an older
        version must be migrated first and somebody else has it.
        """
        origin = await self.get(session_id, context)
        if origin.storage_version != STORAGE_VERSION and origin.id not in self._taken:
            # Opening is what brings a session to this version, or refuses a newer one.
            await (await self.open(origin, context)).close(context)
        metadata, snapshot = await self._snapshot(origin.id, self._open.get(origin.id))
        try:
            yield metadata, snapshot
        finally:
            snapshot.close()

    async def restore(
        self,
        metadata: SessionMetadata,
        records: Iterable[Record],
        next_seq: int,
        context: Context,
    ) -> None:
        """Make a session of just these records, whole or not at all, and leave it closed.

        Raises `InvalidArgument` for an id that is taken or no plain name, and what `records` raises.
        """
        self._new_id(metadata.id)
        with self._claimed(metadata.id):
            await self._build(metadata, records, next_seq=next_seq)
            self._taken.discard(metadata.id)

    async def rewrite(
        self, metadata: SessionMetadata, keep: Keep, context: Context
    ) -> SessionMetadata:
        """Replace a session's store by what `keep` retains (§2.9); raises `SessionInUse`."""
        with self._claimed(metadata.id):
            rewritten = await self._rewrite(metadata.id, keep)
            self._taken.discard(metadata.id)
            return rewritten

    def _new_id(self, wanted: str | None) -> str:
        if wanted is None:
            return self._environment.ids.next()
        if not _SAFE_ID.fullmatch(wanted):
            raise InvalidArgument(f"not a session id: {wanted!r}")
        return wanted

    @contextmanager
    def _claimed(self, session_id: str) -> Generator[None]:
        """The session is this block's; it stays taken afterwards unless the block failed."""
        if session_id in self._taken:
            raise SessionInUse(session_id, "this process")
        self._taken.add(session_id)
        try:
            yield
        except BaseException:
            self._taken.discard(session_id)
            raise

    async def _opened(self, session_id: str) -> Session:
        storage, metadata = await self._open_store(session_id)
        self._open[session_id] = storage

        async def release() -> None:
            self._open.pop(session_id, None)
            self._taken.discard(session_id)

        return Session(storage, metadata, self._environment, release)


def sorted_by_age(found: Iterable[SessionMetadata]) -> list[SessionMetadata]:
    """Oldest first, by id among equals."""
    return sorted(found, key=lambda metadata: (metadata.created_at, metadata.id))
