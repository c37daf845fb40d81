"""Where the Postgres index gets its content from, and the sweep that keeps all tenants' up to date."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg

from harness.context import Context
from harness.errors import HarnessError, SessionNotFound, StorageError
from harness.search.labels import fields_label
from harness.search.sync import SourcePage, SourceSession, SyncReport, page_of, sync_session
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import EntryScan
from storage_pg.idempotency import tenant_transaction
from storage_pg.queries import QUERIES
from storage_pg.reader import SessionReader
from storage_pg.reads import is_uuid
from storage_pg.search import PostgresSearch
from storage_pg.storage import Pool

_log = logging.getLogger(__name__)

_PAGE_SESSIONS = 500
_PAGE_ENTRIES = 200


class PostgresSource:
    """Reads the committed entries of one tenant's sessions; nobody has to own them."""

    def __init__(self, pool: Pool, tenant_id: str) -> None:
        self._pool = pool
        self._tenant = tenant_id

    async def sessions(self, context: Context) -> AsyncIterator[SourceSession]:
        """Every session of the tenant."""
        last: SourceSession | None = None
        while page := await self._list(last):
            for session in page:
                yield session
            last = page[-1]

    async def find(self, session_id: str, context: Context) -> SourceSession:
        """One session; raises `SessionNotFound`."""
        found = await self._list(None, session_id) if is_uuid(session_id) else []
        if not found:
            raise SessionNotFound(session_id)
        return found[0]

    async def read(self, session_id: str, after_seq: int, context: Context) -> SourcePage:
        """One page. Entries are written once, so a page needs no snapshot; a rewrite between the
        two reads shows in the metadata, which is read last."""
        reader = SessionReader(self._pool, self._tenant, session_id)
        scan = EntryScan(from_seq=after_seq + 1, limit=_PAGE_ENTRIES)
        entries = await reader.scan_entries(scan, context)
        metadata = (await self.find(session_id, context)).metadata
        return await asyncio.to_thread(page_of, metadata, entries, after_seq, _PAGE_ENTRIES)

    async def _list(
        self, after: SourceSession | None, only: str | None = None
    ) -> list[SourceSession]:
        async with tenant_transaction(self._pool, self._tenant) as connection:
            rows = await connection.execute(
                QUERIES["search_listing"],
                {
                    "tenant": self._tenant,
                    "only": only,
                    "after": None if after is None else after.metadata.id,
                    "after_time": 0 if after is None else after.metadata.created_at,
                    "limit": _PAGE_SESSIONS,
                },
            )
            return [_session(row) for row in await rows.fetchall()]


# Any: a row's columns are what the statement selects.
def _session(row: Sequence[Any]) -> SourceSession:
    session_id, created_at, cwd, parent, legacy_parent, version, generation, metadata, stamp = row
    return SourceSession(
        SessionMetadata(
            id=session_id,
            created_at=created_at,
            storage_version=version,
            cwd=cwd,
            parent_session_id=parent,
            legacy_parent_session_path=legacy_parent,
            store_generation=generation,
            metadata=metadata,
        ),
        stamp,
    )


async def sweep(
    pool: Pool, context: Context, metadata_fields: Sequence[str] = (), *, at_most: int = 10_000
) -> SyncReport:
    """Bring the index of every tenant up to date, as far as `at_most` sessions at one call.

    Several processes may sweep at once. A session that cannot be read is reported and does not hold
    up the others. Nothing has to be reconciled: deleting a session removes it from the index.
    """
    report = SyncReport()
    fields = fields_label(metadata_fields)
    after: str | None = None
    seen = 0
    while seen < at_most and not context.cancelled:
        page = await _stale(pool, fields, after, min(_PAGE_SESSIONS, at_most - seen))
        if not page:
            break
        for tenant_id, session_id in page:
            seen += 1
            after = session_id
            target = PostgresSearch(pool, tenant_id, metadata_fields)
            source = PostgresSource(pool, tenant_id)
            try:
                report.entries += await sync_session(source, target, session_id, context)
                report.sessions += 1
            except HarnessError as error:
                _log.warning("session %s is not indexed: %s", session_id, error)
                report.failures[session_id] = f"{type(error).__name__}: {error}"
    return report


async def _stale(pool: Pool, fields: str, after: str | None, limit: int) -> list[tuple[str, str]]:
    try:
        async with pool.connection() as connection:
            rows = await connection.execute(QUERIES["search_stale"], (fields, after, limit))
            return [(row[0], row[1]) for row in await rows.fetchall()]
    except psycopg.Error as error:
        raise StorageError(f"the database refused: {error}") from error
