"""The fleet as the database knows it: who lives, who died, who fell silent (design §6)."""

from __future__ import annotations

from dataclasses import dataclass

from storage_pg.open_operations import SessionOwner
from storage_pg.storage import Pool, fetch_from

# A host that holds its lock but has not said for this long that it lives is cut off.
SILENT_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Host:
    """One live incarnation of a host; instants are Unix milliseconds of the database's clock.
    `capacity` is how many operations it drives at once."""

    id: str
    name: str
    role: str
    url: str | None
    process_id: int
    capacity: int
    draining: bool
    started_at: int
    heartbeat_at: int


@dataclass(frozen=True, slots=True)
class DeadHost:
    """A host that was cleared away, and how many sessions it was recorded as owning."""

    id: str
    name: str
    role: str
    sessions: int


async def bury_dead_hosts(pool: Pool) -> list[DeadHost]:
    """Clear every host whose lease connection is gone: its sessions wait for a new owner at once."""
    rows = await fetch_from(pool, "bury_dead_hosts", ())
    return [DeadHost(*row) for row in rows]  # pyright: ignore[reportArgumentType]  # columns of the statement


async def cut_off_silent_hosts(pool: Pool, seconds: float = SILENT_SECONDS) -> list[str]:
    """End the lease connection of hosts without a recent heartbeat; returns their ids.

    They are dead like any other after this: call `bury_dead_hosts` next.
    """
    return [str(row[0]) for row in await fetch_from(pool, "cut_off_silent_hosts", (seconds,))]


async def list_hosts(pool: Pool) -> list[Host]:
    """All hosts, oldest first."""
    rows = await fetch_from(pool, "list_hosts", ())
    return [Host(*row) for row in rows]  # pyright: ignore[reportArgumentType]  # columns of the statement


async def ready_workers(pool: Pool, seconds: float) -> list[SessionOwner]:
    """The workers that take new operations and said within so many seconds that they live."""
    rows = await fetch_from(pool, "ready_workers", (seconds,))
    return [SessionOwner(*row) for row in rows]  # pyright: ignore[reportArgumentType]  # columns of the statement


async def get_host(pool: Pool, host_id: str) -> Host | None:
    """One host, None when it is gone."""
    rows = await fetch_from(pool, "get_host", (host_id,))
    return Host(*rows[0]) if rows else None  # pyright: ignore[reportArgumentType]  # columns of the statement
