"""Whole sessions of one tenant: exported, imported, forked, rewritten (§2.7, §2.9, design §7)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from typing import BinaryIO

import psycopg
from psycopg.rows import TupleRow

from harness.context import BACKGROUND, Context
from harness.environment import Environment
from harness.errors import InvalidArgument, LeaseLost, NewerVersion, SessionInUse, StorageError
from harness.session.export_file import read_lines, write_lines
from harness.session.fork import ForkOptions, fork_records
from harness.session.rewrite import Keep, next_generation, rewrite_records
from harness.storage.metadata import SessionMetadata
from harness.storage.records import Record
from harness.storage.snapshot import Snapshot
from storage_pg.connect import address
from storage_pg.copying import PostgresSnapshot
from storage_pg.due import PollSettings
from storage_pg.queries import QUERIES
from storage_pg.restoring import Restoring
from storage_pg.sessions import PostgresSessions


class PostgresCopies:
    """One tenant's end of a transfer, and its forks and rewrites.

    Each call takes a connection of its own from `dsn` (the pooled address will do) for as long as it
    copies. `sessions` are this process's: a rewrite owns its session, and so does, for a moment,
    whoever reads one of an older storage version. Implements `ExportSource` and `ImportTarget`.
    """

    def __init__(
        self,
        dsn: str,
        tenant_id: str,
        environment: Environment,
        sessions: PostgresSessions,
        *,
        polls: PollSettings | None = None,
    ) -> None:
        self._dsn = dsn
        self._tenant = tenant_id
        self._environment = environment
        self._sessions = sessions
        self._polls = polls or PollSettings()

    @asynccontextmanager
    async def snapshot(
        self, session_id: str, context: Context
    ) -> AsyncGenerator[tuple[SessionMetadata, Snapshot]]:
        """All of a session as of one instant, whoever owns it; read it on a thread, soon.

        Raises `SessionNotFound`, `NewerVersion`, and `SessionInUse` when an older version must be
        migrated first and somebody else has it.
        """
        snapshot = await self._snapshot(session_id)
        try:
            yield snapshot.metadata, snapshot
        finally:
            await asyncio.to_thread(snapshot.close)

    async def restore(
        self,
        metadata: SessionMetadata,
        records: Iterable[Record],
        next_seq: int,
        context: Context,
        *,
        agent: str | None = None,
    ) -> None:
        """Make a session of just these records, in one transaction; nobody owns it.

        An open operation among them is driven from then on, like any other. Raises
        `SessionExists`, `InvalidArgument` for other ids that are taken or are no UUIDs, and what
        `records` raises.
        """

        def run() -> None:
            with self._transaction() as connection:
                restoring = self._restoring(connection, metadata.id)
                restoring.make(metadata, agent)
                restoring.fill(records, next_seq)

        await asyncio.to_thread(run)

    async def delete(self, metadata: SessionMetadata, context: Context) -> None:
        """Remove a session that was restored and that nobody claimed since.

        Raises `SessionInUse` otherwise: delete it as its owner (`PostgresSessions.delete`).
        """

        def run() -> bool:
            with self._transaction() as connection:
                row = connection.execute(
                    QUERIES["discard_session"], (self._tenant, metadata.id)
                ).fetchone()
                return row is not None and bool(row[0])

        if not await asyncio.to_thread(run):
            raise SessionInUse(metadata.id, None)

    async def fork(
        self, session_id: str, options: ForkOptions, context: Context
    ) -> SessionMetadata:
        """A new session from a coherent picture of the source, which may be owned and driven (§2.7).

        Raises `SessionExists`, `InvalidArgument` for an unknown entry or an id that cannot be one,
        and what `snapshot` raises.
        """
        async with self.snapshot(session_id, context) as (origin, snapshot):
            assert isinstance(snapshot, PostgresSnapshot)
            metadata = SessionMetadata(
                id=options.id if options.id is not None else self._environment.ids.next(),
                created_at=self._environment.clock.now_ms(),
                storage_version=self._sessions.schema.version,
                cwd=origin.cwd,
                parent_session_id=origin.id,
                metadata=origin.metadata,
            )
            await self.restore(
                metadata, fork_records(snapshot, options), 1, context, agent=snapshot.agent
            )
        return metadata

    async def rewrite(self, session_id: str, keep: Keep, context: Context) -> SessionMetadata:
        """Replace a session's content by what `keep` retains, in one transaction (§2.9).

        The session is owned meanwhile: raises what `PostgresSessions.open` raises, `InvalidArgument` while an
        operation is open, and `LeaseLost`, with nothing changed.
        """
        owned = await self._sessions.open(self._tenant, session_id)
        try:
            # Reading and writing the same keys in one pass is impossible: the new content waits here.
            with tempfile.TemporaryFile() as spool:
                snapshot = await self._snapshot(session_id)
                try:
                    await asyncio.to_thread(write_lines, spool, rewrite_records(snapshot, keep))
                finally:
                    await asyncio.to_thread(snapshot.close)
                await asyncio.to_thread(
                    self._replace, session_id, owned.claimed.fence, spool, snapshot.next_seq
                )
                return next_generation(snapshot.metadata)
        finally:
            await owned.storage.close(context)

    def _replace(self, session_id: str, fence: int, spool: BinaryIO, next_seq: int) -> None:
        spool.seek(0)
        with self._transaction() as connection:
            row = connection.execute(QUERIES["empty_session"], (session_id, fence)).fetchone()
            if row is None or not row[0]:
                raise LeaseLost(f"session {session_id} was taken while it was rewritten")
            self._restoring(connection, session_id).fill(read_lines(spool), next_seq)

    async def _snapshot(self, session_id: str) -> PostgresSnapshot:
        found = await self._begin(session_id)
        try:
            behind = self._sessions.schema.pending(found.metadata.storage_version)
        except NewerVersion:
            await asyncio.to_thread(found.close)
            raise
        if not behind:
            return found
        await asyncio.to_thread(found.close)
        # Owning it is what migrates it.
        owned = await self._sessions.open(self._tenant, session_id)
        await owned.storage.close(BACKGROUND)
        return await self._begin(session_id)

    async def _begin(self, session_id: str) -> PostgresSnapshot:
        return await asyncio.to_thread(PostgresSnapshot, self._dsn, self._tenant, session_id)

    def _restoring(self, connection: psycopg.Connection[TupleRow], session_id: str) -> Restoring:
        return Restoring(
            connection, self._tenant, session_id, self._environment.clock.now_ms(), self._polls
        )

    @contextmanager
    def _transaction(self) -> Generator[psycopg.Connection[TupleRow]]:
        """A transaction on behalf of the tenant, on a connection of its own."""
        try:
            with psycopg.connect(
                address(self._dsn, "laneway-copy"), prepare_threshold=None
            ) as connection:
                connection.execute(QUERIES["set_tenant"], (self._tenant,))
                yield connection
        except (psycopg.DataError, UnicodeEncodeError) as error:
            raise InvalidArgument(f"Postgres cannot hold this session: {error}") from error
        except psycopg.Error as error:
            raise StorageError(f"the database refused: {error}") from error
