"""Sessions and their index, alike for embedded repositories and for Postgres."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import psycopg

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.entries import Entry
from harness.search.service import SearchService, SearchTarget
from harness.search.source import RepositorySource
from harness.search.sqlite import SqliteSearch
from harness.search.sync import SearchSource, SyncReport, sync_all
from harness.session.repo import CreateOptions, Repository
from harness.session.rewrite import Keep
from harness.session.session import Session
from storage_pg.search import PostgresSearch
from storage_pg.search_source import PostgresSource
from storage_pg.sessions import NewSession
from tests.storage_pg.kit import Kit


class Index(SearchService, SearchTarget, Protocol):
    """An index that can be searched and filled."""


class Place(Protocol):
    """Where sessions are, and an index of them."""

    index: Index

    @property
    def source(self) -> SearchSource: ...

    async def new(
        self, cwd: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Session: ...
    async def delete(self, session: Session) -> None: ...
    async def rewrite(self, session: Session, drop: str) -> None:
        """Leave out one entry, in a closed session."""
        ...

    async def reindexed(self, fields: Sequence[str]) -> Index:
        """The same index opened with other metadata fields."""
        ...

    async def close(self) -> None: ...


async def sync(place: Place) -> SyncReport:
    """Bring the index up to date; nothing may fail."""
    report = await sync_all(place.source, place.index, BACKGROUND)
    assert report.failures == {}
    return report


class _Drop(Keep):
    def __init__(self, entry_id: str) -> None:
        self._entry_id = entry_id

    def entry(self, entry: Entry) -> Entry | None:
        return None if entry.id == self._entry_id else entry


class EmbeddedPlace:
    """An embedded repository with a SQLite index."""

    def __init__(self, repository: Repository, index: SqliteSearch, path: Path) -> None:
        self.repository = repository
        self.index: Index = index
        self._path = path
        self._indexes = [index]
        self._sessions: list[Session] = []
        self.source = RepositorySource(repository, SystemClock())

    @staticmethod
    async def open(repository: Repository, folder: Path, fields: Sequence[str]) -> EmbeddedPlace:
        path = folder / "search.db"
        return EmbeddedPlace(
            repository, await SqliteSearch.open(path, metadata_fields=fields), path
        )

    async def new(
        self, cwd: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Session:
        options = CreateOptions(cwd=cwd, metadata=None if metadata is None else dict(metadata))
        session = await self.repository.create(options, BACKGROUND)
        self._sessions.append(session)
        return session

    async def delete(self, session: Session) -> None:
        await session.close(BACKGROUND)
        await self.repository.delete(session.metadata, BACKGROUND)

    async def rewrite(self, session: Session, drop: str) -> None:
        await session.close(BACKGROUND)
        await self.repository.rewrite(session.metadata, _Drop(drop), BACKGROUND)

    async def reindexed(self, fields: Sequence[str]) -> Index:
        self._indexes.append(await SqliteSearch.open(self._path, metadata_fields=fields))
        return self._indexes[-1]

    async def close(self) -> None:
        for session in self._sessions:
            await session.close(BACKGROUND)
        for index in self._indexes:
            await index.close()


class PostgresPlace:
    """A tenant's sessions, in their own database's index or in a SQLite one."""

    def __init__(self, kit: Kit, fields: Sequence[str], index: SqliteSearch | None = None) -> None:
        self.kit = kit
        self.index: Index = index or PostgresSearch(kit.pool, kit.tenant, fields)
        self.source = PostgresSource(kit.pool, kit.tenant)
        self._sqlite: list[SqliteSearch] = [] if index is None else [index]
        self._path: Path | None = None
        self._sessions: list[Session] = []

    @staticmethod
    async def with_sqlite_index(kit: Kit, folder: Path, fields: Sequence[str]) -> PostgresPlace:
        path = folder / "search.db"
        place = PostgresPlace(kit, fields, await SqliteSearch.open(path, metadata_fields=fields))
        place._path = path
        return place

    async def new(
        self, cwd: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> Session:
        owned = await self.kit.open_new(NewSession(cwd=cwd, metadata=metadata))
        session = owned.session(self.kit.environment)
        self._sessions.append(session)
        return session

    async def delete(self, session: Session) -> None:
        await session.close(BACKGROUND)
        await self.kit.sessions.delete(self.kit.tenant, session.id)

    async def rewrite(self, session: Session, drop: str) -> None:
        # What a rewrite leaves behind, by hand: the same session with another store.
        await session.close(BACKGROUND)
        with psycopg.connect(self.kit.database.owner_dsn) as owner:
            owner.execute(
                "DELETE FROM laneway.entries WHERE session_id = %s AND id = %s", (session.id, drop)
            )
            owner.execute(
                "UPDATE laneway.sessions SET store_generation = store_generation + 1 WHERE id = %s",
                (session.id,),
            )

    async def reindexed(self, fields: Sequence[str]) -> Index:
        if self._path is None:
            return PostgresSearch(self.kit.pool, self.kit.tenant, fields)
        self._sqlite.append(await SqliteSearch.open(self._path, metadata_fields=fields))
        return self._sqlite[-1]

    async def close(self) -> None:
        for session in self._sessions:
            await session.close(BACKGROUND)
        for index in self._sqlite:
            await index.close()
