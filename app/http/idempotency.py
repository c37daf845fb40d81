"""`Idempotency-Key`: the same key and body get the same answer, another body is refused (design §7).

Where a session is made, the key is taken in the transaction that makes it. What a session's owner
commits cannot share a transaction with the key's first use: the key of an operation first gets to
stand for its id, and whatever else is made is noted under the key by the owner's own commit. An
import has neither: its key is taken for a minute and the answer kept when there is one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeAlias

from fastapi import Header
from fastapi.responses import Response
from pydantic import AfterValidator

from app.http.calls import answer
from app.http.parameters import is_text
from app.http.problems import Problem, invalid
from app.http.services import Services
from harness.ids import parse_uuid7
from harness.operation.results import QueuedEntry
from storage_pg.idempotency import (
    DAY_MS,
    STANDS_FOR,
    Attempt,
    Fresh,
    IdempotencyKey,
    KeyConflict,
    Replay,
    Reservation,
    Unanswered,
    attempt,
    forget,
    keep,
    reserve,
    tenant_transaction,
)
from workers.commands import RequestKey

REPLAYED = {"Idempotency-Replayed": "true"}

# A request that dies between its work and its answer leaves the key taken for this long.
_TAKEN_MS = 60_000


def _check(key: str | None) -> str | None:
    if key is not None and not is_text(key):
        raise invalid("header.idempotency-key", "neither NUL nor lone surrogates are allowed here")
    return key


Key: TypeAlias = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="The same key and body get the same answer for a day.",
    ),
    AfterValidator(_check),
]


def fingerprint(*parts: str | bytes) -> str:
    """What a request asks for, in brief."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def refused(reservation: KeyConflict | Unanswered) -> Problem:
    """The problem of a key that cannot be used now."""
    if isinstance(reservation, KeyConflict):
        return Problem(
            409, "IdempotencyKeyReused", "The Idempotency-Key was used for another request."
        )
    return Problem(
        409,
        "RequestInProgress",
        "The first request with this Idempotency-Key is still being answered.",
        headers={"Retry-After": "1"},
    )


async def once(
    services: Services,
    tenant_id: str,
    key: str | None,
    asked: str,
    status: int,
    work: Callable[[], Awaitable[bytes]],
) -> Response:
    """The answer of `work` with this status, done once for each key and fingerprint `asked`."""
    if key is None:
        return answer(await work(), status)
    taken = IdempotencyKey(key, asked, _TAKEN_MS)
    reservation = await _reserve(services, tenant_id, taken)
    match reservation:
        case Replay(status=kept, response=response):
            return answer(response.encode(), kept, REPLAYED)
        case KeyConflict() | Unanswered():
            raise refused(reservation)
        case Fresh():
            pass
    try:
        made = await work()
    except Problem as problem:
        # Refused for good: nothing was done. After a failure that may be otherwise, the key stays
        # taken for its minute instead.
        if problem.status_code < 500:
            async with tenant_transaction(services.pool, tenant_id) as connection:
                await forget(connection, tenant_id, taken)
        raise
    async with tenant_transaction(services.pool, tenant_id) as connection:
        await keep(connection, tenant_id, IdempotencyKey(key, asked), status, made.decode())
    return answer(made, status)


async def queued(entry_id: str) -> QueuedEntry:
    """The answer for what was queued or appended before."""
    return QueuedEntry(entry_id=entry_id)


async def make_once(
    services: Services,
    tenant_id: str,
    key: str | None,
    asked: str,
    status: int,
    make: Callable[[RequestKey | None], Awaitable[bytes]],
    made: Callable[[str], Awaitable[object]],
) -> Response:
    """The answer of `make`, a command that a session's owner carries out once for each key.

    `made` is the answer for the id of what was made before. Until something is, each request tries:
    whatever became of those before it, and whatever they were refused for.
    """
    if key is None:
        return answer(await make(None), status)
    now = services.environment.clock.now_ms()
    found = await attempt(services.pool, tenant_id, IdempotencyKey(key, asked), now)
    match found:
        case Attempt(number=number):
            return answer(await make(RequestKey(key=key, attempt=number)), status)
        case Replay(response=known) if found.status == STANDS_FOR:
            return answer(await made(known), status, REPLAYED)
        case Replay(status=kept, response=response):
            return answer(response.encode(), kept, REPLAYED)
        case KeyConflict() | Unanswered():
            raise refused(found)


async def id_for_key(
    services: Services, tenant_id: str, key: str, asked: str, wanted: str | None
) -> tuple[str, bool]:
    """The id that the key stands for, for a day, and whether it did so before this call.

    `wanted` is the caller's own choice, None for a new one.
    """
    made = services.environment.ids.next() if wanted is None else parse_uuid7(wanted)
    taken = IdempotencyKey(key, asked, DAY_MS)
    now = services.environment.clock.now_ms()
    async with tenant_transaction(services.pool, tenant_id) as connection:
        reservation = await reserve(connection, tenant_id, taken, now)
        if isinstance(reservation, Fresh):
            await keep(connection, tenant_id, taken, STANDS_FOR, made)
            return made, False
    match reservation:
        case Replay(response=known) if reservation.status == STANDS_FOR:
            return known, True
        case Replay():
            raise refused(KeyConflict())
        case KeyConflict() | Unanswered():
            raise refused(reservation)


async def _reserve(services: Services, tenant_id: str, key: IdempotencyKey) -> Reservation:
    now = services.environment.clock.now_ms()
    async with tenant_transaction(services.pool, tenant_id) as connection:
        return await reserve(connection, tenant_id, key, now)
