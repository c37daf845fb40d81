"""Operations of sessions that no process can open: their passes counted, their end written without an owner (design §6)."""

from __future__ import annotations

from dataclasses import dataclass

from harness.codec import encode_str, valid_unicode
from harness.errors import OperationKind
from harness.operation.lane_state import LaneLastResult, LaneState
from storage_pg.storage import Pool, fetch_from


@dataclass(frozen=True, slots=True)
class OpenRow:
    """The scheduler's row of an open operation. `due_at` is Unix milliseconds."""

    operation_id: str
    lane: str
    kind: OperationKind
    due_at: int


@dataclass(frozen=True, slots=True)
class Hopeless:
    """An operation whose passes lead nowhere, in a session that nobody owns; `reason` is why the last
    one failed, as far as anybody lived to say."""

    tenant_id: str
    session_id: str
    passes: int
    reason: str | None
    row: OpenRow


async def hopeless_operations(pool: Pool, most: int) -> list[Hopeless]:
    """Operations, of every tenant, that had `most` passes or more without progress and whose session
    has no owner."""
    rows = await fetch_from(pool, "hopeless", (most,))
    return [
        Hopeless(tenant, session, passes, reason, OpenRow(*row))  # pyright: ignore[reportArgumentType]  # columns of the statement
        for tenant, session, passes, reason, *row in rows
    ]


async def open_of_session(pool: Pool, tenant_id: str, session_id: str) -> list[OpenRow]:
    """A session's open operations, as the scheduler's rows say."""
    rows = await fetch_from(pool, "open_of_session", (tenant_id, session_id))
    return [OpenRow(*row) for row in rows]  # pyright: ignore[reportArgumentType]  # columns of the statement


async def count_unopened(
    pool: Pool, tenant_id: str, session_id: str, operation_id: str, reason: str
) -> int | None:
    """Count a pass that could not begin; how many in a row there were, None when the operation is
    over."""
    safe = valid_unicode(reason).replace("\0", "")
    rows = await fetch_from(pool, "count_unopened", (tenant_id, session_id, operation_id, safe))
    counted: int | None = rows[0][0]  # pyright: ignore[reportAssignmentType]  # column of the statement
    return counted


async def end_unopened(
    pool: Pool,
    tenant_id: str,
    session_id: str,
    operation_id: str,
    *,
    seen_seq: int,
    lane_state: LaneState | None,
    result: LaneLastResult,
    now_ms: int,
) -> bool:
    """End an operation as failed while nobody owns its session; False when somebody does, when the
    session moved on from `seen_seq`, or when the operation is over.

    `lane_state` is what the lane is left in; None leaves the lane as it is, because another
    operation is its current one.
    """
    encoded = encode_str(result)
    error = None if result.error is None else encode_str(result.error)
    rows = await fetch_from(
        pool,
        "end_unopened",
        (
            tenant_id,
            session_id,
            operation_id,
            seen_seq,
            None if lane_state is None else encode_str(lane_state),
            None if lane_state is None else encoded,
            encoded,
            error,
            now_ms,
        ),
    )
    return rows[0][0] is True
