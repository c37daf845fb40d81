"""What operators ask of all tenants' operations and of the hosts, and the order to leave (design §8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from storage_pg.fleet_state import WorkState
from storage_pg.storage import Pool, fetch_from

# `done`: over; `lost`: open by its receipt, but without the scheduler's row, which a sweep repairs.
RecordState: TypeAlias = WorkState | Literal["done", "lost"]


@dataclass(frozen=True, slots=True)
class OperationRecord:
    """One operation of any tenant. Instants are Unix milliseconds; what concerns the scheduler is None
    when it is over, what concerns the outcome when it is open. `error` is JSON as stored; `passes` are
    those in a row without progress, `last_reason` why the last of them failed."""

    id: str
    tenant_id: str
    tenant: str | None
    session_id: str
    lane: str
    kind: str
    state: RecordState
    accepted_at: int
    due_at: int | None
    dispatched_at: int | None
    passes: int | None
    last_reason: str | None
    host_id: str | None
    host: str | None
    outcome: str | None
    error: str | None
    finished_at: int | None


@dataclass(frozen=True, slots=True)
class ObservedHost:
    """A host as others see it. `silent_seconds` since its last heartbeat; `alive`: its lease connection
    stands; `sessions` is how many it owns."""

    id: str
    name: str
    role: str
    url: str | None
    process_id: int
    capacity: int
    draining: bool
    told_to_leave: bool
    started_at: int
    silent_seconds: float
    alive: bool
    sessions: int


async def find_operation_record(
    pool: Pool, operation_id: str, now_ms: int
) -> OperationRecord | None:
    """One operation, whoever's it is."""
    rows = await fetch_from(pool, "operator_operation", (operation_id, now_ms))
    return OperationRecord(*rows[0]) if rows else None  # pyright: ignore[reportArgumentType]  # columns of the statement


async def list_operation_records(
    pool: Pool,
    now_ms: int,
    *,
    tenant_id: str | None = None,
    state: WorkState | None = None,
    accepted_before: int | None = None,
    at_most: int = 100,
) -> list[OperationRecord]:
    """Open operations, those accepted first first."""
    asked = (tenant_id, state, accepted_before, at_most, now_ms)
    rows = await fetch_from(pool, "operator_operations", asked)
    return [OperationRecord(*row) for row in rows]  # pyright: ignore[reportArgumentType]  # columns of the statement


async def undispatch(pool: Pool, tenant_id: str, operation_id: str) -> bool:
    """Have an open operation dispatched again as soon as it is due; False when it is not open."""
    return bool((await fetch_from(pool, "undispatch", (tenant_id, operation_id)))[0][0])


async def observe_hosts(pool: Pool) -> list[ObservedHost]:
    """All hosts on record, oldest first."""
    rows = await fetch_from(pool, "observed_hosts", ())
    return [ObservedHost(*row) for row in rows]  # pyright: ignore[reportArgumentType]  # columns of the statement


async def tell_to_leave(pool: Pool, host_id: str) -> bool:
    """Order a host to drain and end, which it does within a heartbeat; False when it is gone."""
    return bool(await fetch_from(pool, "tell_to_leave", (host_id,)))
