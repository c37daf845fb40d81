"""Sessions in Postgres: created, found, listed, claimed, read without owning them (§2.8, design §5)."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from harness.codec import encode_str
from harness.environment import Environment
from harness.errors import (
    InvalidArgument,
    NewerVersion,
    SessionInUse,
    SessionNotFound,
    StorageError,
)
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.session import MAIN_LANE, Session
from harness.storage.metadata import SessionMetadata
from harness.storage.migrations import CURRENT_SCHEMA, Schema
from harness.storage.writes import SetValue, Write, set_value
from harness.usage import ZERO_USAGE
from storage_pg.claimed import ClaimedSession, HeldElsewhere, NoSuchSession
from storage_pg.due import PollSettings
from storage_pg.idempotency import (
    Fresh,
    IdempotencyKey,
    KeyConflict,
    Replay,
    Unanswered,
    keep,
    reserve,
    tenant_transaction,
)
from storage_pg.lease import HostLease
from storage_pg.meter import SILENT, StorageMeter
from storage_pg.migrating import migrate_claimed
from storage_pg.queries import QUERIES
from storage_pg.reader import SessionReader, open_snapshot
from storage_pg.storage import Pool, PostgresStorage
from storage_pg.writer import SharedWriter

_log = logging.getLogger(__name__)

# Sessions that were spoken of; after so many, again.
_TOLD = 10_000


class SessionExists(InvalidArgument):
    """The session id is taken; use another one, or leave it out to have one made."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """What a caller may say of a session to be made; everything has a default."""

    id: str | None = None
    agent: str | None = None
    name: str | None = None
    # Any: application JSON.
    metadata: Mapping[str, Any] | None = None
    cwd: str | None = None
    parent_session_id: str | None = None


@dataclass(frozen=True, slots=True)
class OwnedSession:
    """A claimed session: its storage, ready for a `Session`, and what the claim said of it."""

    claimed: ClaimedSession
    storage: PostgresStorage

    def session(self, environment: Environment) -> Session:
        """The session over this storage."""
        return Session(self.storage, self.claimed.metadata, environment)


class PostgresSessions:
    """Makes, claims and reads sessions of any tenant; every call names its tenant.

    `lease` is this process's host; without one nothing can be claimed. Claimed sessions are of the
    storage version of `schema`. Listing and receipts are in
    `storage_pg.catalog`.
    """

    def __init__(
        self,
        pool: Pool,
        writer: SharedWriter,
        environment: Environment,
        *,
        lease: HostLease | None = None,
        polls: PollSettings | None = None,
        schema: Schema = CURRENT_SCHEMA,
        meter: StorageMeter = SILENT,
    ) -> None:
        self._pool = pool
        self._writer = writer
        self._environment = environment
        self._lease = lease
        self._polls = polls or PollSettings()
        self.schema = schema
        self._too_new: set[str] = set()
        self._meter = meter

    async def create(self, tenant_id: str, new: NewSession | None = None) -> SessionMetadata:
        """Make a session with an idle lane `main` at the root (§2.8).

        Raises `SessionExists`, and `InvalidArgument` for metadata that cannot be filtered on.
        """
        async with self._pool.connection() as connection:
            return await self.create_on(connection, tenant_id, new or NewSession())

    async def create_once(
        self,
        tenant_id: str,
        new: NewSession,
        key: IdempotencyKey,
        answer: Callable[[SessionMetadata], tuple[int, str]],
    ) -> SessionMetadata | Replay | KeyConflict | Unanswered:
        """The same under an idempotency key: one transaction makes the session and keeps the status
        and body that `answer` gives for it. Raises what `create` raises, and keeps nothing then."""
        now = self._environment.clock.now_ms()
        async with tenant_transaction(self._pool, tenant_id) as connection:
            reserved = await reserve(connection, tenant_id, key, now)
            if not isinstance(reserved, Fresh):
                return reserved
            metadata = await self.create_on(connection, tenant_id, new)
            await keep(connection, tenant_id, key, *answer(metadata))
            return metadata

    async def create_on(
        self, connection: psycopg.AsyncConnection[Any], tenant_id: str, new: NewSession
    ) -> SessionMetadata:
        """The same as part of the caller's transaction."""
        now = self._environment.clock.now_ms()
        session_id = new.id if new.id is not None else self._environment.ids.next()
        writes: list[Write] = [
            set_value(values.lane_leaf(MAIN_LANE), None),
            set_value(values.lane_state(MAIN_LANE), IDLE_LANE),
        ]
        if new.name is not None:
            writes.append(set_value(values.SESSION_NAME, new.name))
        stored = [write for write in writes if isinstance(write, SetValue)]
        try:
            await connection.execute(
                QUERIES["create_session"],
                {
                    "tenant": tenant_id,
                    "id": session_id,
                    "stamp": now,
                    "agent": new.agent,
                    "name": new.name,
                    "metadata": Jsonb(dict(new.metadata or {})),
                    "cwd": new.cwd,
                    "parent": new.parent_session_id,
                    "legacy_parent": None,
                    "version": self.schema.version,
                    "usage": encode_str(ZERO_USAGE),
                    "namespaces": [write.namespace for write in stored],
                    "keys": [write.key for write in stored],
                    "contents": [encode_str(write.value) for write in stored],
                },
            )
        except psycopg.errors.UniqueViolation as error:
            raise SessionExists(f"session {session_id} exists") from error
        except (psycopg.DataError, UnicodeEncodeError) as error:
            raise InvalidArgument(
                "an id is no UUID, or a name or the metadata contains NUL or lone surrogates"
            ) from error
        except psycopg.Error as error:
            raise StorageError(f"the database refused a new session: {error}") from error
        return SessionMetadata(
            id=session_id,
            created_at=now,
            storage_version=self.schema.version,
            cwd=new.cwd,
            parent_session_id=new.parent_session_id,
            metadata=dict(new.metadata) if new.metadata else None,
        )

    async def claim(
        self, tenant_id: str, session_id: str
    ) -> OwnedSession | HeldElsewhere | NoSuchSession:
        """Try to own a session; closing its storage gives it back.

        What an older Laneway wrote is migrated first (§7.3). Raises `NewerVersion` when a newer one
        wrote it, `StorageCorrupt` when it holds what cannot be read, `HostDown` and `HostFull`.
        """
        if self._lease is None:
            raise InvalidArgument("this process is no host: it has no lease connection")
        lease = self._lease
        clock = self._environment.clock
        begun = clock.monotonic()
        claimed = await lease.claim(tenant_id, session_id)
        self._meter.claimed(clock.monotonic() - begun)
        if not isinstance(claimed, ClaimedSession):
            return claimed
        fence = claimed.fence

        async def release() -> None:
            await lease.release(session_id, fence)

        try:
            now = self._environment.clock.now_ms()
            claimed = await migrate_claimed(self._pool, claimed, self.schema, now, self._polls)
            storage = PostgresStorage(
                claimed,
                pool=self._pool,
                writer=self._writer,
                clock=self._environment.clock,
                polls=self._polls,
                release=release,
                meter=self._meter,
            )
        except BaseException as error:
            await release()  # of a newer version, or an operation's state is unreadable
            if isinstance(error, NewerVersion):
                self._leave_alone(session_id, error)
            raise
        lease.watch(session_id, claimed.fence, storage.lose)
        return OwnedSession(claimed, storage)

    def _leave_alone(self, session_id: str, error: NewerVersion) -> None:
        """Say it once: its operations wait for a newer process, and are offered here again and again."""
        if session_id in self._too_new:
            return
        if len(self._too_new) >= _TOLD:
            self._too_new.clear()
        self._too_new.add(session_id)
        _log.warning("session %s is left to a newer process: %s", session_id, error)

    async def open(self, tenant_id: str, session_id: str) -> OwnedSession:
        """Own a session or raise: `SessionInUse` naming the holder, or `SessionNotFound`."""
        claimed = await self.claim(tenant_id, session_id)
        match claimed:
            case OwnedSession():
                return claimed
            case HeldElsewhere(host_id=host):
                raise SessionInUse(session_id, None if host is None else f"host {host}")
            case NoSuchSession():
                raise SessionNotFound(session_id)

    async def delete(self, tenant_id: str, session_id: str) -> None:
        """Remove a session and everything in it but its operations' receipts.

        It is claimed first: raises what `open` raises.
        """
        owned = await self.open(tenant_id, session_id)
        try:
            async with self._pool.connection() as connection:
                await connection.execute(
                    QUERIES["delete_session"], (tenant_id, session_id, owned.claimed.fence)
                )
        except psycopg.Error as error:
            raise StorageError(f"the database refused to delete a session: {error}") from error
        finally:
            owned.storage.lose(SessionNotFound(session_id))
            if self._lease is not None:
                await self._lease.release(session_id, owned.claimed.fence)

    def reader(self, tenant_id: str, session_id: str) -> SessionReader:
        """Committed data without owning the session; each call sees the newest."""
        return SessionReader(self._pool, tenant_id, session_id)

    @asynccontextmanager
    async def snapshot(self, tenant_id: str, session_id: str) -> AsyncGenerator[SessionReader]:
        """Committed data as of one instant. Keep it short: a long snapshot holds back vacuum."""
        async with open_snapshot(self._pool, tenant_id, session_id) as reader:
            yield reader
