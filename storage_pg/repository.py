"""One tenant's sessions behind the interface that the embedded repositories have (§2.8)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.context import Context
from harness.environment import Environment
from harness.errors import SessionNotFound
from harness.session.fork import ForkOptions
from harness.session.repo import CreateOptions
from harness.session.rewrite import Keep
from harness.session.session import Session
from harness.storage.metadata import SessionMetadata
from storage_pg.copies import PostgresCopies
from storage_pg.idempotency import tenant_transaction
from storage_pg.queries import QUERIES
from storage_pg.reads import is_uuid
from storage_pg.restoring import canonical
from storage_pg.sessions import NewSession, PostgresSessions
from storage_pg.storage import Pool


class PostgresRepository:
    """A `SessionRepo`. Whoever opens a session owns it through this process's lease until it is closed.

    Ids are UUIDs. Session metadata may contain neither NUL nor lone surrogates.
    """

    def __init__(
        self,
        pool: Pool,
        tenant_id: str,
        environment: Environment,
        sessions: PostgresSessions,
        copies: PostgresCopies,
    ) -> None:
        self._pool = pool
        self._tenant = tenant_id
        self._environment = environment
        self._sessions = sessions
        self._copies = copies

    async def create(self, options: CreateOptions, context: Context) -> Session:
        """A new session, open, with a main lane at the root; raises `InvalidArgument` for a taken id
        or one that is no UUID."""
        parent = options.parent_session_id
        new = NewSession(
            id=None if options.id is None else canonical(options.id),
            cwd=options.cwd,
            parent_session_id=None if parent is None else canonical(parent),
            metadata=options.metadata,
        )
        made = await self._sessions.create(self._tenant, new)
        return await self._opened(made.id)

    async def open(self, metadata: SessionMetadata, context: Context) -> Session:
        """Open a session; raises `SessionInUse`, `SessionNotFound`, `NewerVersion`, `StorageCorrupt`,
        `HostDown` and `HostFull`."""
        return await self._opened(metadata.id)

    async def get(self, session_id: str, context: Context) -> SessionMetadata:
        """A session's metadata; raises `SessionNotFound`."""
        known = is_uuid(session_id)
        found = await _listed(self._pool, self._tenant, session_id) if known else []
        if not found:
            raise SessionNotFound(session_id)
        return found[0]

    async def list(self, context: Context) -> list[SessionMetadata]:
        """Every session of the tenant, oldest first."""
        return await _listed(self._pool, self._tenant)

    async def delete(self, metadata: SessionMetadata, context: Context) -> None:
        """Remove a session for good; raises what `open` raises."""
        await self._sessions.delete(self._tenant, metadata.id)

    async def fork(
        self, source: SessionMetadata, options: ForkOptions, context: Context
    ) -> Session:
        """A new open session from a coherent picture of the source, which may be in use (§2.7)."""
        made = await self._copies.fork(source.id, options, context)
        return await self._opened(made.id)

    async def rewrite(
        self, metadata: SessionMetadata, keep: Keep, context: Context
    ) -> SessionMetadata:
        """Replace a session's store by what `keep` retains (§2.9); raises `SessionInUse`."""
        return await self._copies.rewrite(metadata.id, keep, context)

    async def _opened(self, session_id: str) -> Session:
        owned = await self._sessions.open(self._tenant, session_id)
        return owned.session(self._environment)


async def _listed(pool: Pool, tenant_id: str, only: str | None = None) -> list[SessionMetadata]:
    async with tenant_transaction(pool, tenant_id) as connection:
        rows = await connection.execute(QUERIES["list_metadata"], {"only": only})
        return [_metadata_of(row) for row in await rows.fetchall()]


# Any: a row's columns are what the statement selects.
def _metadata_of(row: Sequence[Any]) -> SessionMetadata:
    session_id, created_at, cwd, parent, legacy_parent, version, generation, metadata = row
    return SessionMetadata(
        id=session_id,
        created_at=created_at,
        storage_version=version,
        cwd=cwd,
        parent_session_id=parent,
        legacy_parent_session_path=legacy_parent,
        store_generation=generation,
        metadata=metadata or None,
    )
