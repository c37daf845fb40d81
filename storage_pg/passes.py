"""Drive passes as the database counts them: admitted within their tenant's limit, begun, ended (design §6)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.codec import valid_unicode
from storage_pg.storage import Pool, fetch_from


@dataclass(frozen=True, slots=True)
class PassCount:
    """How many passes in a row began without any progress of the operation's state between them (1:
    there was progress), and why the last one failed where that is known."""

    passes: int
    reason: str | None


class TenantFull:
    """The operation's tenant has as many passes under way as it may; none was begun."""


TENANT_FULL = TenantFull()


@dataclass(frozen=True, slots=True)
class Suspected:
    """Hosts died under the operation, so that its pass is begun alone or not at all; none was begun.
    It would have been number `passes` without progress."""

    passes: int
    reason: str | None


async def begin_pass(
    pool: Pool,
    tenant_id: str,
    session_id: str,
    operation_id: str,
    *,
    host_id: str | None,
    tenant_limit: int,
    alone: bool = False,
    reason: str | None = None,
) -> PassCount | TenantFull | Suspected | None:
    """Admit a drive pass by this host and count it; None when the operation is over.

    A tenant without a limit of its own may have `tenant_limit` passes at once. `alone`: no other
    suspect's pass begins at this host meanwhile. `reason` is why the one before failed.
    """
    rows = await fetch_from(
        pool,
        "begin_drive",
        (tenant_id, session_id, operation_id, host_id, tenant_limit, _storable(reason), alone),
    )
    if not rows:
        return None
    row: tuple[Any, ...] = rows[0]  # Any: the statement's columns
    admitted, suspected, passes, last_reason = row
    if suspected:
        return Suspected(passes, last_reason)
    return PassCount(passes, last_reason) if admitted else TENANT_FULL


async def end_pass(
    pool: Pool,
    tenant_id: str,
    session_id: str,
    operation_id: str,
    *,
    host_id: str | None,
    excused: bool,
    reason: str | None = None,
) -> None:
    """Say that a pass by this host ended and left its operation open. `excused`: it was stopped
    through no fault of the operation, and its count is taken back."""
    await fetch_from(
        pool,
        "end_drive",
        (tenant_id, session_id, operation_id, host_id, excused, _storable(reason)),
    )


def _storable(reason: str | None) -> str | None:
    # Reasons come from anywhere; the database takes neither NUL nor lone surrogates.
    return None if reason is None else valid_unicode(reason).replace("\0", "")
