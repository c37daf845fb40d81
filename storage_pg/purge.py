"""Removes what is over and past its retention, in small transactions (design §11).

Hosts and jobs need none of this: a host's row goes when it leaves or is found dead, and a job's when
it is done.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from storage_pg.storage import Pool, fetch_from

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

# Small enough not to hold anybody up; as many in one call as a job may take time for.
_BATCH = 1_000
_MOST_BATCHES = 200


@dataclass(frozen=True, slots=True)
class Retention:
    """How long rows stay, milliseconds: receipts after their operation's end (None: for ever),
    idempotency keys after their expiry."""

    receipts_ms: int | None
    expired_keys_ms: int


@dataclass(frozen=True, slots=True)
class Gone:
    """How many rows were removed."""

    receipts: int
    keys: int


async def purge(
    pool: Pool,
    now_ms: int,
    keep: Retention,
    *,
    batch: int = _BATCH,
    most_batches: int = _MOST_BATCHES,
) -> Gone:
    """Remove at most `most_batches` batches of each kind. Several callers at once do no harm.

    Raises `StorageError`; what was removed before stays removed.
    """
    receipts = 0
    if keep.receipts_ms is not None:
        before = now_ms - keep.receipts_ms
        receipts = await _batches(pool, "purge_receipts", before, batch, most_batches)
    before = now_ms - keep.expired_keys_ms
    return Gone(receipts, await _batches(pool, "purge_keys", before, batch, most_batches))


async def _batches(pool: Pool, query: str, before: int, batch: int, most: int) -> int:
    removed = 0
    for _ in range(most):
        rows: list[tuple[Any, ...]] = await fetch_from(pool, query, (before, batch))  # Any: columns
        removed += rows[0][0]
        if rows[0][0] < batch:
            break
    return removed
