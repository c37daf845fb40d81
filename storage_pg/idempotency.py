"""Idempotency keys: the same key and body get the same answer, another body is refused (design §7).

The key is taken, the work done and the answer kept in one transaction where the work is this
database's own. What a session's owner makes is noted under the key by the owner's own commit
(`attempt`, `once_under`). Work that commits elsewhere takes the key first and keeps its answer
afterwards; it must be idempotent by itself, because a request that dies in between leaves the key
unanswered until it expires: give such keys a short `keep_ms` when taking them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import psycopg
from psycopg.rows import TupleRow

from harness.context import Context
from harness.errors import StorageError
from harness.session.once import Once, OnceUnknown, Superseded
from harness.storage.writes import SetValue
from storage_pg.documents import NOTED
from storage_pg.queries import QUERIES
from storage_pg.storage import Pool, fetch_from

DAY_MS = 86_400_000

# The status of a key that stands for what was made (an id, a name) instead of for an answer.
STANDS_FOR = 0


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The caller's key and a fingerprint of what it asks for. Answers are kept for `keep_ms`."""

    key: str
    fingerprint: str
    keep_ms: int = DAY_MS


@dataclass(frozen=True, slots=True)
class Fresh:
    """Nobody used this key: do the work and keep the answer."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """Nothing is known to have been made under this key. This request is the newest that tries to,
    and the only one that still may."""

    number: int


@dataclass(frozen=True, slots=True)
class Replay:
    """The answer that the first request got; with `STANDS_FOR`, the id that it was given."""

    status: int
    response: str


@dataclass(frozen=True, slots=True)
class KeyConflict:
    """The key was used for something else."""


@dataclass(frozen=True, slots=True)
class Unanswered:
    """The first request with this key is still being answered; try again."""


Reservation: TypeAlias = Fresh | Replay | KeyConflict | Unanswered


@asynccontextmanager
async def tenant_transaction(
    pool: Pool, tenant_id: str
) -> AsyncGenerator[psycopg.AsyncConnection[TupleRow]]:
    """A transaction on behalf of a tenant; database errors become `StorageError`."""
    try:
        async with pool.connection() as connection, connection.transaction():
            await connection.execute(QUERIES["set_tenant"], (tenant_id,))
            yield connection
    except psycopg.Error as error:
        raise StorageError(f"the database refused: {error}") from error


async def reserve(
    connection: psycopg.AsyncConnection[TupleRow], tenant_id: str, key: IdempotencyKey, now_ms: int
) -> Reservation:
    """Take the key in the caller's transaction, or say what it was used for."""
    taken = await connection.execute(
        QUERIES["reserve_key"],
        {
            "tenant": tenant_id,
            "key": key.key,
            "fingerprint": key.fingerprint,
            "now": now_ms,
            "expires": now_ms + key.keep_ms,
        },
    )
    if await taken.fetchone() is not None:
        return Fresh()
    row = await (await connection.execute(QUERIES["kept_answer"], (tenant_id, key.key))).fetchone()
    if row is None:
        return Unanswered()  # taken back at this very moment
    fingerprint, status, response = row
    if fingerprint != key.fingerprint:
        return KeyConflict()
    return Unanswered() if status is None else Replay(status, response)


async def keep(
    connection: psycopg.AsyncConnection[TupleRow],
    tenant_id: str,
    key: IdempotencyKey,
    status: int,
    response: str,
) -> None:
    """Keep the answer for whoever asks again, for the `keep_ms` of this key."""
    await connection.execute(
        QUERIES["keep_answer"], (status, response, key.keep_ms, tenant_id, key.key)
    )


async def forget(
    connection: psycopg.AsyncConnection[TupleRow], tenant_id: str, key: IdempotencyKey
) -> None:
    """Give the key back: the request failed and may be tried again."""
    await connection.execute(QUERIES["forget_key"], (tenant_id, key.key))


async def attempt(
    pool: Pool, tenant_id: str, key: IdempotencyKey, now_ms: int
) -> Attempt | Replay | KeyConflict | Unanswered:
    """Begin to have something made under a key, or to make it after all: what an earlier request
    with the key has not made by now, it does not make any more. Raises `StorageError`."""
    rows = await fetch_from(
        pool,
        "attempt_key",
        (tenant_id, key.key, key.fingerprint, now_ms, now_ms + key.keep_ms),
    )
    match rows:
        case [(int(number), _, _, _)]:
            return Attempt(number)
        case [(None, str(asked), _, _)] if asked != key.fingerprint:
            return KeyConflict()
        case [(None, _, int(status), str(response))]:
            return Replay(status, response)
        case _:
            return Unanswered()  # by the release before, or taken back at this very moment


def once_under(pool: Pool, tenant_id: str, key: str, number: int) -> Once:
    """Lets a session's owner make what attempt `number` asks for once under the key.

    The owner's commit notes it; the lane's line and the fence see to it that nothing comes between
    the look for a note and that commit.
    """

    async def made(context: Context) -> str | None:
        try:
            rows = await fetch_from(pool, "key_standing", (tenant_id, key))
        except StorageError as error:
            # A question beside the session: its failure says nothing of the session's own state.
            raise OnceUnknown(str(error)) from error
        match rows:
            case [(_, status, str(known))] if status == STANDS_FOR:
                return known
            case [(newest, None, _)] if newest == number:
                return None
            case _:
                raise Superseded

    return Once(made, lambda made_id: SetValue(NOTED, key, made_id))
