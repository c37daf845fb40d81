"""Where the sessions of a stateful test live: one class per backend, all repository work included."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psycopg
from psycopg.rows import TupleRow

from harness.context import BACKGROUND
from harness.environment import Environment
from harness.errors import LeaseLost
from harness.session.fork import ForkOptions
from harness.session.repo import CreateOptions, Repository
from harness.session.repo_files import JsonlSessions, SqliteSessions
from harness.session.repo_memory import MemorySessions
from harness.session.rewrite import Keep
from harness.session.session import Session
from harness.storage.jsonl import CompactionPolicy, JsonlStorage
from harness.storage.metadata import SessionMetadata
from harness.storage.sqlite import SqliteStorage
from harness.testing.content import Content
from storage_pg.copies import PostgresCopies
from storage_pg.copying import PostgresSnapshot
from storage_pg.sessions import OwnedSession, PostgresSessions
from tests.storage_pg.kit import Kit


class Place(Protocol):
    """One session at a time, and what can be done with it from outside its process."""

    async def create(self) -> Session:
        """A new session, open."""
        ...

    async def bury(self) -> None:
        """The process that had the session open is dead; nothing was closed."""
        ...

    async def open(self) -> Session:
        """Open the session, which nobody has open."""
        ...

    async def content(self) -> Content:
        """What is durable now, whoever has the session open."""
        ...

    async def fork(self, options: ForkOptions) -> tuple[SessionMetadata, Content]:
        """Fork the session; the new one is closed."""
        ...

    async def move(self, metadata: SessionMetadata) -> None:
        """Go on with another session, deleting this one, which nobody has open."""
        ...

    async def rewrite(self, keep: Keep) -> SessionMetadata:
        """Rewrite the session, which nobody has open."""
        ...

    async def delete(self, metadata: SessionMetadata) -> None:
        """Delete a closed session."""
        ...


MakeRepository = Callable[[Environment], Repository]
MakePlace = Callable[[Environment], Place]


class EmbeddedPlace:
    """A repository; the process that has it may die, its files stay."""

    def __init__(self, environment: Environment, make: MakeRepository) -> None:
        self._environment = environment
        self._make = make
        self._repository = make(environment)
        self._open: Session | None = None
        self._metadata = SessionMetadata(id="", created_at=0)

    async def create(self) -> Session:
        self._open = await self._repository.create(CreateOptions(), BACKGROUND)
        self._metadata = self._open.metadata
        return self._open

    async def bury(self) -> None:
        assert self._open is not None
        storage = self._open.storage
        if isinstance(storage, JsonlStorage | SqliteStorage):
            await storage.abandon()
            self._repository = self._make(self._environment)
        else:
            await self._open.close(BACKGROUND)

    async def open(self) -> Session:
        self._open = await self._repository.open(self._metadata, BACKGROUND)
        return self._open

    async def content(self) -> Content:
        return await self._content_of(self._metadata.id)

    async def _content_of(self, session_id: str) -> Content:
        async with self._repository.snapshot(session_id, BACKGROUND) as (_, snapshot):
            return Content.of_snapshot(snapshot)

    async def fork(self, options: ForkOptions) -> tuple[SessionMetadata, Content]:
        made = await self._repository.fork(self._metadata, options, BACKGROUND)
        content = await self._content_of(made.id)
        await made.close(BACKGROUND)
        return made.metadata, content

    async def move(self, metadata: SessionMetadata) -> None:
        await self.delete(self._metadata)
        self._metadata = metadata

    async def rewrite(self, keep: Keep) -> SessionMetadata:
        self._metadata = await self._repository.rewrite(self._metadata, keep, BACKGROUND)
        return self._metadata

    async def delete(self, metadata: SessionMetadata) -> None:
        await self._repository.delete(metadata, BACKGROUND)


class PostgresPlace:
    """A tenant's session, claimed by a host that stays while the processes on it die."""

    def __init__(
        self, environment: Environment, kit: Kit, reads: psycopg.Connection[TupleRow]
    ) -> None:
        self._kit = kit
        self._reads = reads
        self._environment = environment
        self._sessions = PostgresSessions(kit.pool, kit.writer, environment, lease=kit.lease)
        self._copies = PostgresCopies(kit.database.app_dsn, kit.tenant, environment, self._sessions)
        self._id = ""
        self._owned: OwnedSession | None = None

    async def create(self) -> Session:
        self._id = (await self._sessions.create(self._kit.tenant)).id
        return await self.open()

    async def bury(self) -> None:
        # What losing the lease connection does, without the price of a new one for each death.
        assert self._owned is not None
        await self._frames_sent()
        self._owned.storage.lose(LeaseLost())
        await self._kit.lease.release(self._id)

    async def open(self) -> Session:
        self._owned = await self._sessions.open(self._kit.tenant, self._id)
        return self._owned.session(self._environment)

    async def content(self) -> Content:
        await self._frames_sent()
        return await self._content_of(self._id)

    async def _frames_sent(self) -> None:
        # A death may lose the newest frames on this backend, as `tests/crash` shows. Here both must
        # hold the same after each step, so none is lost.
        while self._owned is not None and (sender := self._owned.storage._sender) is not None:
            await asyncio.wait([sender])

    async def _content_of(self, session_id: str) -> Content:
        snapshot = _Snapshot(self._reads, self._kit.tenant, session_id)
        try:
            return Content.of_snapshot(snapshot)
        finally:
            snapshot.close()

    async def fork(self, options: ForkOptions) -> tuple[SessionMetadata, Content]:
        metadata = await self._copies.fork(self._id, options, BACKGROUND)
        return metadata, await self._content_of(metadata.id)

    async def move(self, metadata: SessionMetadata) -> None:
        await self._sessions.delete(self._kit.tenant, self._id)
        self._id = metadata.id

    async def rewrite(self, keep: Keep) -> SessionMetadata:
        return await self._copies.rewrite(self._id, keep, BACKGROUND)

    async def delete(self, metadata: SessionMetadata) -> None:
        await self._sessions.delete(self._kit.tenant, metadata.id)


class _Snapshot(PostgresSnapshot):
    """A snapshot on a connection that stays: thousands are taken."""

    def __init__(
        self, connection: psycopg.Connection[TupleRow], tenant_id: str, session_id: str
    ) -> None:
        self._tenant = tenant_id
        self._session = session_id
        self._names = itertools.count()
        self._connection = connection
        self._begin()

    def close(self) -> None:
        """End the transaction."""
        self._connection.rollback()


@dataclass(frozen=True, slots=True)
class Folder:
    """Places whose files are in one folder."""

    path: Path

    def jsonl(self, environment: Environment) -> Place:
        """Files that compact themselves at every chance that a small session gives them."""
        policy = CompactionPolicy(min_dead_bytes=4_096, dead_share=0.5)
        return EmbeddedPlace(
            environment, lambda world: JsonlSessions(self.path, world, policy=policy)
        )

    def sqlite(self, environment: Environment) -> Place:
        """Files that survive the process, not the machine, because only processes die here."""
        return EmbeddedPlace(
            environment, lambda world: SqliteSessions(self.path, world, synchronous="normal")
        )


def memory(environment: Environment) -> Place:
    """Maps."""
    return EmbeddedPlace(environment, MemorySessions)
