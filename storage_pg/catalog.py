"""Catalogue queries: tenants, keys, sessions as listed, receipts. Through SQLAlchemy (design §5).

Every tenant-owned read or write runs in a transaction that names its tenant; row-level security
does the rest.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, insert, select, text, tuple_, update
from sqlalchemy.exc import DataError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from harness.clock import Clock
from harness.errors import InvalidArgument
from harness.ids import IdGenerator
from storage_pg.api_keys import ApiKey, KeyOwner, MintedKey, mint_key, split_key, verify_secret
from storage_pg.connect import KEEPALIVE, sqlalchemy_url
from storage_pg.receipts import OperationStatus, Receipt
from storage_pg.tables import api_keys, operations, sessions, tenants

MAX_PAGE = 1_000


class NameTaken(ValueError):
    """A tenant of that name exists; choose another name."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """Who is served. Instants are Unix milliseconds; `limits` holds what its quotas are."""

    id: str
    name: str
    created_at: int
    disabled_at: int | None
    # Any: JSON whose keys are the quotas' names.
    limits: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SessionListing:
    """A session as a list shows it, without opening it."""

    id: str
    created_at: int
    updated_at: int
    agent: str | None
    name: str | None
    # Any: application JSON.
    metadata: Mapping[str, Any]
    cwd: str | None
    parent_session_id: str | None
    storage_version: int
    message_count: int
    usage: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page ended: go on with what is older."""

    instant: int
    id: str


def open_engine(dsn: str, *, size: int = 4) -> AsyncEngine:
    """An engine for the catalogue, safe behind a transaction-mode pooler; `dispose()` it."""
    return create_async_engine(
        sqlalchemy_url(dsn),
        pool_size=size,
        max_overflow=size,
        pool_pre_ping=True,
        connect_args={
            "prepare_threshold": None,
            "application_name": "laneway-catalog",
            **KEEPALIVE,
        },
    )


class Catalog:
    """Queries over the catalogue of one deployment."""

    def __init__(self, engine: AsyncEngine, clock: Clock, ids: IdGenerator) -> None:
        self._engine = engine
        self._clock = clock
        self._ids = ids

    @asynccontextmanager
    async def transaction(self, tenant_id: str | None) -> AsyncGenerator[AsyncConnection]:
        """A transaction on behalf of a tenant (None: none, which sees no tenant's rows)."""
        async with self._engine.begin() as connection:
            await connection.execute(
                text("SELECT set_config('laneway.tenant', :tenant, true)"),
                {"tenant": tenant_id or ""},
            )
            yield connection

    # Tenants

    async def create_tenant(self, name: str, limits: Mapping[str, Any] | None = None) -> Tenant:
        """Register a tenant; raises `NameTaken`."""
        made = Tenant(self._ids.next(), name, self._clock.now_ms(), None, dict(limits or {}))
        try:
            async with self.transaction(None) as connection:
                await connection.execute(
                    insert(tenants).values(
                        id=made.id, name=name, created_at=made.created_at, limits=made.limits
                    )
                )
        except IntegrityError as error:
            raise NameTaken(f"there is a tenant named {name!r}") from error
        return made

    async def list_tenants(self) -> list[Tenant]:
        """All tenants, oldest first."""
        query = select(tenants).order_by(tenants.c.created_at, tenants.c.id)
        async with self.transaction(None) as connection:
            return [_tenant(row) for row in await connection.execute(query)]

    async def get_tenant(self, tenant_id: str) -> Tenant | None:
        """One tenant."""
        return await self._find_tenant(tenants.c.id == tenant_id)

    async def find_tenant(self, name: str) -> Tenant | None:
        """One tenant, by its name."""
        return await self._find_tenant(tenants.c.name == name)

    async def set_limits(self, tenant_id: str, limits: Mapping[str, Any]) -> bool:
        """Replace a tenant's quotas; False when there is no such tenant."""
        return await self._change_tenant(tenant_id, limits=dict(limits))

    async def disable_tenant(self, tenant_id: str) -> bool:
        """Refuse a tenant's keys from now on; its data stays."""
        return await self._change_tenant(tenant_id, disabled_at=self._clock.now_ms())

    async def enable_tenant(self, tenant_id: str) -> bool:
        """Take a tenant's keys again."""
        return await self._change_tenant(tenant_id, disabled_at=None)

    async def _find_tenant(self, condition: ColumnElement[bool]) -> Tenant | None:
        async with self.transaction(None) as connection:
            row = (await connection.execute(select(tenants).where(condition))).first()
        return None if row is None else _tenant(row)

    async def _change_tenant(self, tenant_id: str, **changes: Any) -> bool:
        statement = update(tenants).where(tenants.c.id == tenant_id).values(**changes)
        async with self.transaction(None) as connection:
            return (await connection.execute(statement)).rowcount > 0

    # Keys

    async def create_key(
        self,
        tenant_id: str,
        name: str,
        scopes: Sequence[str],
        expires_at: int | None = None,
    ) -> MintedKey:
        """Make an API key; its plain text is returned here and never again."""
        minted = mint_key(tenant_id, name, tuple(scopes), self._clock.now_ms(), expires_at)
        key = minted.key
        async with self.transaction(tenant_id) as connection:
            await connection.execute(
                insert(api_keys).values(
                    id=key.id,
                    tenant_id=tenant_id,
                    name=name,
                    secret_hash=minted.secret_hash,
                    scopes=list(key.scopes),
                    created_at=key.created_at,
                    expires_at=expires_at,
                )
            )
        return minted

    async def list_keys(self, tenant_id: str) -> list[ApiKey]:
        """A tenant's keys, oldest first, without their secrets."""
        query = select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id)
        async with self.transaction(tenant_id) as connection:
            return [_key(row) for row in await connection.execute(query)]

    async def revoke_key(self, tenant_id: str, key_id: str) -> bool:
        """Refuse a key from now on; False when the tenant has no such live key."""
        statement = (
            update(api_keys)
            .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
            .values(revoked_at=self._clock.now_ms())
        )
        async with self.transaction(tenant_id) as connection:
            return (await connection.execute(statement)).rowcount > 0

    async def authenticate(self, presented: str) -> KeyOwner | None:
        """Whose key this is; None for a wrong, expired or revoked key or a disabled tenant."""
        parts = split_key(presented)
        if parts is None:
            return None
        key_id, secret = parts
        query = text("SELECT * FROM laneway.find_api_key(:key)")
        async with self.transaction(None) as connection:
            row = (await connection.execute(query, {"key": key_id})).first()
        if row is None or not verify_secret(secret, row.secret_hash):
            return None
        now = self._clock.now_ms()
        if row.revoked_at is not None or row.tenant_disabled_at is not None:
            return None
        if row.expires_at is not None and row.expires_at <= now:
            return None
        return KeyOwner(_key(row), row.tenant_name, dict(row.limits))

    # Sessions

    async def get_session(self, tenant_id: str, session_id: str) -> SessionListing | None:
        """One session as listed."""
        query = select(sessions).where(sessions.c.id == session_id)
        async with self.transaction(tenant_id) as connection:
            row = (await connection.execute(query)).first()
        return None if row is None else _listing(row)

    async def list_sessions(
        self,
        tenant_id: str,
        *,
        metadata: Mapping[str, Any] | None = None,
        agent: str | None = None,
        cursor: Cursor | None = None,
        limit: int = 50,
    ) -> list[SessionListing]:
        """Sessions, newest first; those whose metadata contains `metadata`."""
        query = select(sessions)
        if metadata:
            query = query.where(sessions.c.metadata.contains(dict(metadata)))
        if agent is not None:
            query = query.where(sessions.c.agent == agent)
        query = _page(query, sessions.c.created_at, sessions.c.id, cursor, limit)
        async with self.transaction(tenant_id) as connection:
            return [_listing(row) for row in await connection.execute(query)]

    async def set_metadata(
        self, tenant_id: str, session_id: str, metadata: Mapping[str, Any]
    ) -> bool:
        """Replace a session's metadata; False when there is no such session. Raises
        `InvalidArgument` for NUL or lone surrogates in it. The session's name is a value of the
        session and is changed by its owner."""
        statement = (
            update(sessions).where(sessions.c.id == session_id).values(metadata=dict(metadata))
        )
        try:
            async with self.transaction(tenant_id) as connection:
                return (await connection.execute(statement)).rowcount > 0
        except DataError as error:
            raise InvalidArgument("metadata contains NUL or lone surrogates") from error

    # Receipts

    async def list_operations(
        self,
        tenant_id: str,
        *,
        session_id: str | None = None,
        lane: str | None = None,
        status: OperationStatus | None = None,
        cursor: Cursor | None = None,
        limit: int = 50,
    ) -> list[Receipt]:
        """Receipts, newest first."""
        query = select(operations)
        for column, wanted in (
            (operations.c.session_id, session_id),
            (operations.c.lane, lane),
            (operations.c.status, status),
        ):
            if wanted is not None:
                query = query.where(column == wanted)
        query = _page(query, operations.c.accepted_at, operations.c.id, cursor, limit)
        async with self.transaction(tenant_id) as connection:
            return [_receipt(row) for row in await connection.execute(query)]

    async def count_open_operations(self, tenant_id: str) -> int:
        """How many operations of the tenant are open, for its quota."""
        query = text("SELECT count(*) FROM laneway.open_operations")
        async with self.transaction(tenant_id) as connection:
            return (await connection.execute(query)).scalar_one()


def _page(
    query: Select[Any],
    instant: ColumnElement[int],
    row_id: ColumnElement[Any],
    cursor: Cursor | None,
    limit: int,
) -> Select[Any]:
    if cursor is not None:
        query = query.where(tuple_(instant, row_id) < (cursor.instant, uuid.UUID(cursor.id)))
    return query.order_by(instant.desc(), row_id.desc()).limit(max(1, min(limit, MAX_PAGE)))


def _tenant(row: Row[Any]) -> Tenant:
    return Tenant(str(row.id), row.name, row.created_at, row.disabled_at, dict(row.limits))


def _key(row: Row[Any]) -> ApiKey:
    return ApiKey(
        row.id,
        str(row.tenant_id),
        row.name,
        tuple(row.scopes),
        row.created_at,
        row.expires_at,
        row.revoked_at,
    )


def _listing(row: Row[Any]) -> SessionListing:
    return SessionListing(
        id=str(row.id),
        created_at=row.created_at,
        updated_at=row.updated_at,
        agent=row.agent,
        name=row.name,
        metadata=dict(row.metadata),
        cwd=row.cwd,
        parent_session_id=None if row.parent_session_id is None else str(row.parent_session_id),
        storage_version=row.storage_version,
        message_count=row.message_count,
        usage=row.usage,
    )


def _receipt(row: Row[Any]) -> Receipt:
    return Receipt(
        id=str(row.id),
        session_id=str(row.session_id),
        lane=row.lane,
        kind=row.kind,
        status=row.status,
        outcome=row.outcome,
        error=row.error,
        result=row.result,
        accepted_at=row.accepted_at,
        finished_at=row.finished_at,
    )
