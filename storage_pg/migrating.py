"""Brings a claimed session to the current storage version, one transaction for each step (§7.3)."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import psycopg
from psycopg.rows import TupleRow

from harness.codec import decode
from harness.errors import LeaseLost
from harness.operation.state import OperationState
from harness.storage.migrations import Migration, Mutable, Schema, Step
from harness.storage.records import ElementRecord, ValueRecord
from storage_pg.claimed import ClaimedSession
from storage_pg.derived import STATE
from storage_pg.due import DueAt, DuePoll, PollSettings, due_instant, due_of
from storage_pg.idempotency import tenant_transaction
from storage_pg.queries import QUERIES
from storage_pg.storage import Pool

_log = logging.getLogger(__name__)

_PAGE = 1_000
# Any: pyright cannot name a union as type[T]; the decoder takes it.
_STATE_TYPE: Any = OperationState


async def migrate_claimed(
    pool: Pool, claimed: ClaimedSession, schema: Schema, now_ms: int, polls: PollSettings
) -> ClaimedSession:
    """The claimed session at the version of `schema`, with the control values that it has then.

    Each step holds the claim's fence. A death between two steps leaves the version of the first; the
    next claim goes on from there. Raises `NewerVersion`, and `LeaseLost` with that step undone.
    """
    stored = claimed.metadata.storage_version
    steps = schema.pending(stored)
    if not steps:
        return claimed
    control = claimed.control
    for migration in steps:
        async with tenant_transaction(pool, claimed.tenant_id) as connection:
            await _hold(connection, claimed)
            await _Run(connection, claimed).run(migration)
            version = migration.source + 1
            await connection.execute(QUERIES["write_storage_version"], (version, claimed.id))
            control = await _control(connection, claimed)
            if version == schema.version:
                await _reschedule(connection, claimed, control, now_ms, polls)
    _log.info("session %s was migrated from version %d to %d", claimed.id, stored, schema.version)
    metadata = msgspec.structs.replace(claimed.metadata, storage_version=schema.version)
    return replace(claimed, metadata=metadata, control=control)


async def _hold(connection: psycopg.AsyncConnection[TupleRow], claimed: ClaimedSession) -> None:
    found = await connection.execute(QUERIES["lock_claimed"], (claimed.id, claimed.fence))
    if await found.fetchone() is None:
        raise LeaseLost(f"session {claimed.id} was taken while it was migrated")


class _OldValues:
    """The values before the step; they are few by design."""

    def __init__(self, records: list[ValueRecord]) -> None:
        self._texts = {(record.namespace, record.key): record.json for record in records}

    def get(self, namespace: str, key: str) -> str | None:
        """The JSON text of a value, or None."""
        return self._texts.get((namespace, key))


class _Run:
    """One step in one transaction."""

    def __init__(
        self, connection: psycopg.AsyncConnection[TupleRow], claimed: ClaimedSession
    ) -> None:
        self._connection = connection
        self._who = (claimed.tenant_id, claimed.id)

    async def run(self, migration: Migration) -> None:
        """Convert every value and every list element."""
        rows = await self._connection.execute(QUERIES["migrating_values"], self._who[1:])
        records = [ValueRecord(*row) for row in await rows.fetchall()]
        step = Step(migration, _OldValues(records))
        # Nothing is written before every conversion has read its neighbours as they were; elements
        # become elements page by page, and those that become values are written with the values.
        decided = _changes(step, records)
        added: list[Mutable] = []
        async for page in self._elements():
            changes = _changes(step, page)
            await self._drop(old for old, _ in changes)
            news = [new for _, new in changes if new is not None]
            await self._write(new for new in news if isinstance(new, ElementRecord))
            added += [new for new in news if not isinstance(new, ElementRecord)]
        await self._drop(old for old, _ in decided)
        await self._write(new for _, new in decided if new is not None)
        await self._write(added)

    async def _elements(self) -> AsyncIterator[list[ElementRecord]]:
        after = 0
        while True:
            rows = await self._connection.execute(
                QUERIES["migrating_elements"], (*self._who[1:], after, _PAGE)
            )
            page = [ElementRecord(*row) for row in await rows.fetchall()]
            if not page:
                return
            after = page[-1].seq
            yield page

    async def _drop(self, olds: Iterable[Mutable]) -> None:
        rows: dict[str, list[tuple[object, ...]]] = {}
        for old in olds:
            value = isinstance(old, ValueRecord)
            name = "migrating_drop_value" if value else "migrating_drop_element"
            place = (self._who[1], old.namespace, old.key, old.seq)
            rows.setdefault(name, []).append(place)
        await self._all(rows)

    async def _write(self, news: Iterable[Mutable]) -> None:
        rows: dict[str, list[tuple[object, ...]]] = {}
        for new in news:
            name = "restore_value" if isinstance(new, ValueRecord) else "restore_element"
            columns = (*self._who, new.seq, new.namespace, new.key, new.json)
            rows.setdefault(name, []).append(columns)
        await self._all(rows)

    async def _all(self, rows: Mapping[str, Sequence[tuple[object, ...]]]) -> None:
        async with self._connection.cursor() as cursor:
            for name, parameters in rows.items():
                await cursor.executemany(QUERIES[name], parameters)


def _changes(step: Step, records: Sequence[Mutable]) -> list[tuple[Mutable, Mutable | None]]:
    return [(old, new) for old, new in step.apply(records) if new != old]


async def _control(
    connection: psycopg.AsyncConnection[TupleRow], claimed: ClaimedSession
) -> tuple[tuple[str, str, int, str], ...]:
    found = await connection.execute(QUERIES["migrating_control"], (claimed.id,))
    row = await found.fetchone()
    if row is None or row[0] is None:
        return ()
    return tuple(zip(*row, strict=True))


async def _reschedule(
    connection: psycopg.AsyncConnection[TupleRow],
    claimed: ClaimedSession,
    control: tuple[tuple[str, str, int, str], ...],
    now_ms: int,
    polls: PollSettings,
) -> None:
    """Have the scheduler's rows say what the converted states say."""
    for namespace, operation, _, text in control:
        if namespace != STATE:
            continue
        due = due_of(decode(text, _STATE_TYPE))
        if isinstance(due, DuePoll):
            continue  # the row knows better when the next poll is
        await connection.execute(
            QUERIES["migrating_due"],
            {
                "instant": due_instant(due, now_ms, polls),
                "exact": isinstance(due, DueAt),
                "operation": operation,
                "session": claimed.id,
            },
        )
