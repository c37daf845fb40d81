"""What the dispatcher and the sweep ask the database (design §6)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never

import psycopg
from psycopg_pool import PoolClosed, PoolTimeout

from harness.codec import decode
from harness.errors import StorageCorrupt
from harness.operation.state import OperationMeta, OperationState
from storage_pg.derived import kind_of
from storage_pg.due import Due, DueAt, DueNow, DuePoll, PollSettings, due_instant, due_of
from storage_pg.queries import QUERIES
from storage_pg.storage import Pool, fetch_from, read_error

# A dispatched operation that nobody claimed for this long is dispatched again (milliseconds).
AGAIN_AFTER_MS = 3_000

# Any: pyright cannot name a union as type[T]; the decoder takes it.
_STATE_TYPE: Any = OperationState

_PAGE = 500
_CLOCK_SLACK_MS = 5_000


@dataclass(frozen=True, slots=True)
class DueOperation:
    """An operation that waits for a drive. `due_at` is Unix milliseconds."""

    operation_id: str
    tenant_id: str
    session_id: str
    lane: str
    due_at: int


@dataclass(frozen=True, slots=True)
class SessionOwner:
    """The host that owns a session."""

    host_id: str
    role: str
    url: str | None


Difference: TypeAlias = Literal["missing", "stray", "wrong_due"]


@dataclass(frozen=True, slots=True)
class Repair:
    """One row of the scheduler's table that did not agree with the operation's own state."""

    operation_id: str
    session_id: str
    tenant_id: str
    difference: Difference


async def dispatch_due(
    pool: Pool,
    now_ms: int,
    *,
    at_most: int = 100,
    tenant_limit: int = 64,
    again_after_ms: int = AGAIN_AFTER_MS,
) -> list[DueOperation]:
    """Choose operations that wait for a drive, tenants taking turns, and mark them dispatched.

    An operation is chosen by one caller only, until it has waited `again_after_ms` more. A tenant
    without a limit of its own may have `tenant_limit` drives at once.
    """
    rows = await fetch_from(pool, "dispatch_due", (now_ms, again_after_ms, at_most, tenant_limit))
    return [DueOperation(*row) for row in rows]  # pyright: ignore[reportArgumentType]  # columns of the statement


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one call dispatched: operations for which there are jobs now, and those that the caller
    said it would drive itself."""

    queued: list[DueOperation]
    kept: list[DueOperation]


async def dispatch_jobs(
    pool: Pool,
    now_ms: int,
    *,
    queue: str,
    task: str,
    keep: int = 0,
    at_most: int = 100,
    tenant_limit: int = 64,
    again_after_ms: int = AGAIN_AFTER_MS,
) -> Dispatched:
    """The same, with a job of the queue for each in the same transaction, except for `keep` of them,
    which the caller drives without a job. An operation has at most one queued job.

    Whether kept or queued, what nobody claims is dispatched again after `again_after_ms`.
    """
    try:
        async with pool.connection() as connection:
            cursor = await connection.execute(
                QUERIES["dispatch_jobs"],
                {
                    "now": now_ms,
                    "again_after": again_after_ms,
                    "at_most": at_most,
                    "tenant_limit": tenant_limit,
                    "queue": queue,
                    "task": task,
                    "keep": keep,
                },
            )
            rows = await cursor.fetchall()
    except (psycopg.Error, PoolTimeout, PoolClosed) as error:
        raise read_error(error) from error
    found = Dispatched([], [])
    for *columns, kept in rows:
        (found.kept if kept else found.queued).append(DueOperation(*columns))
    return found


@dataclass(frozen=True, slots=True)
class Outlook:
    """When the next operation becomes due (Unix ms), and whether one that is due waits for room."""

    next_due: int | None
    backlog: bool


async def outlook(pool: Pool, now_ms: int) -> Outlook:
    """What a dispatcher can expect after it dispatched."""
    rows = await fetch_from(pool, "outlook", (now_ms,))
    return Outlook(*rows[0])  # pyright: ignore[reportArgumentType]  # columns of the statement


async def owner_of(pool: Pool, tenant_id: str, session_id: str) -> SessionOwner | None:
    """Who owns a session now, None when nobody does."""
    rows = await fetch_from(pool, "owner_of", (tenant_id, session_id))
    return SessionOwner(*rows[0]) if rows else None  # pyright: ignore[reportArgumentType]  # columns of the statement


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Where a session stands (its next sequence number), whose agent it is and who owns it."""

    next_seq: int
    agent: str | None
    owner: SessionOwner | None


async def whereabouts(pool: Pool, tenant_id: str, session_id: str) -> Whereabouts | None:
    """One session's, None when the tenant has no such session."""
    rows = await fetch_from(pool, "whereabouts", (tenant_id, session_id))
    if not rows:
        return None
    row: tuple[Any, ...] = rows[0]  # Any: the statement's columns
    next_seq, agent, host_id, role, url = row
    return Whereabouts(
        next_seq, agent, None if host_id is None else SessionOwner(host_id, role, url)
    )


async def due_of_session(pool: Pool, tenant_id: str, session_id: str) -> dict[str, int]:
    """When a session's open operations are due (Unix ms), as the scheduler's rows say."""
    rows = await fetch_from(pool, "due_of_session", (tenant_id, session_id))
    found: list[tuple[Any, ...]] = rows  # Any: the statement's columns
    return {row[0]: row[1] for row in found}


async def wake_operation(
    pool: Pool, tenant_id: str, session_id: str, operation_id: str, now_ms: int
) -> bool:
    """Make an open operation due now if it is due later; False when it is not open."""
    rows = await fetch_from(pool, "wake_operation", (tenant_id, session_id, operation_id, now_ms))
    return bool(rows[0][0])


async def sweep(
    pool: Pool, now: Callable[[], int], polls: PollSettings, *, repair: bool = True
) -> AsyncIterator[Repair]:
    """Compare every open operation's state with the scheduler's row and repair what differs.

    The state is the authority. Each repair is one transaction that first makes sure that the
    state is still the one that was read. A healthy system yields nothing. Without `repair` it says
    what it would do, and changes nothing. `now` tells the time (Unix ms).
    """
    after = ""
    while True:
        rows = await fetch_from(pool, "sweep_page", (after, _PAGE))
        # Only now: the page may have had to wait for the database, and by an earlier time what was
        # accepted meanwhile would be due in the future.
        now_ms = now()
        for row in rows:
            found = await _compare(pool, row, now_ms, polls, repair=repair)
            if found is not None:
                yield found
        if len(rows) < _PAGE:
            return
        after = str(rows[-1][0])


async def _compare(
    pool: Pool, row: tuple[Any, ...], now_ms: int, polls: PollSettings, *, repair: bool
) -> Repair | None:
    operation_id, tenant_id, session_id, state_seq, state_text, meta_text, has_row, due_at = row
    due: int | None = None
    lane, kind, accepted = "", "run", now_ms
    difference: Difference
    if state_text is None or meta_text is None:
        difference = "stray"
        if not has_row:
            return None
    else:
        try:
            meta = decode(meta_text, OperationMeta)
        except StorageCorrupt:
            return None  # whoever opens the session says what is wrong with it
        lane, kind, accepted = meta.lane, kind_of(meta), meta.started_at
        wanted = _wanted(state_text)
        due = now_ms if wanted is None else due_instant(wanted, now_ms, polls)
        if not has_row:
            difference = "missing"
        elif wanted is None or _agrees(wanted, due_at, due, now_ms):
            return None
        else:
            difference = "wrong_due"
    if repair:
        done = await fetch_from(
            pool,
            "repair_open_operation",
            (tenant_id, session_id, operation_id, state_seq, due, lane, kind, accepted),
        )
        if done[0][0] is not True:
            return None
    return Repair(operation_id, session_id, tenant_id, difference)


def _wanted(state_text: str) -> Due | None:
    """When the state wants to be looked at; None for one that this build cannot read, because a newer
    one wrote it or because it is damaged: a drive finds out which."""
    try:
        state: OperationState = decode(state_text, _STATE_TYPE)
    except StorageCorrupt:
        return None
    return due_of(state)


def _agrees(wanted: DueNow | DueAt | DuePoll, due_at: int, due: int, now_ms: int) -> bool:
    match wanted:
        case DueNow():
            # It may have become due after the sweep began, or by a clock a little ahead of ours.
            return due_at <= now_ms + _CLOCK_SLACK_MS
        case DueAt(instant=instant):
            return due_at == instant
        case DuePoll():
            return due_at <= due
        case _:
            assert_never(wanted)
