"""The fleet's work in numbers, over all tenants: for metrics and for whoever operates it (design §13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from storage_pg.storage import Pool, fetch_from

# `waiting`: due, and no worker owns its session; `driven`: due, and a worker owns it;
# `scheduled`: due later.
WorkState: TypeAlias = Literal["waiting", "driven", "scheduled"]


@dataclass(frozen=True, slots=True)
class WorkCount:
    """How many open operations of one class of tenants are in one state."""

    tenant_class: str
    state: WorkState
    number: int


@dataclass(frozen=True, slots=True)
class FleetState:
    """`oldest_waiting`: since when the one that waits longest is due (Unix ms), None when none waits.
    `hosts` counts by role and by whether they drain."""

    operations: tuple[WorkCount, ...]
    oldest_waiting: int | None
    hosts: dict[tuple[str, bool], int]


async def fleet_state(pool: Pool, now_ms: int) -> FleetState:
    """Count everything once; reads every open operation's row. Raises `StorageError`."""
    rows: list[tuple[Any, ...]] = await fetch_from(pool, "fleet_work", (now_ms,))  # Any: columns
    hosts: list[tuple[Any, ...]] = await fetch_from(pool, "count_hosts", ())  # Any: columns
    waiting = [oldest for _, state, _, oldest in rows if state == "waiting"]
    return FleetState(
        operations=tuple(WorkCount(tenant_class, state, n) for tenant_class, state, n, _ in rows),
        oldest_waiting=min(waiting, default=None),
        hosts={(role, draining): number for role, draining, number in hosts},
    )
