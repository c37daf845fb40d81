"""The permanent record of operations: found by one plain query, for whoever waits for an end looks often."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from harness.errors import OperationKind
from storage_pg.reads import is_uuid
from storage_pg.storage import Pool, fetch_from

OperationStatus: TypeAlias = Literal["open", "done"]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of an operation. Instants are Unix milliseconds; `error` and `result` are JSON texts
    as stored."""

    id: str
    session_id: str
    lane: str
    kind: OperationKind
    status: OperationStatus
    outcome: str | None
    error: str | None
    result: str | None
    accepted_at: int
    finished_at: int | None


async def find_receipt(pool: Pool, tenant_id: str, operation_id: str) -> Receipt | None:
    """The tenant's operation of that id, open or done; raises `StorageError`."""
    if not is_uuid(operation_id):
        return None
    rows = await fetch_from(pool, "receipt", (tenant_id, operation_id))
    return Receipt(operation_id, *rows[0]) if rows else None  # pyright: ignore[reportArgumentType]  # columns of the statement
