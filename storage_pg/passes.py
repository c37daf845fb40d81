"""Drive passes as the database counts them: admitted within their tenant's limit, begun, ended (design §6)."""

from __future__ import annotations

from dataclasses import dataclass

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


async def begin_pass(
    pool: Pool,
    tenant_id: str,
    session_id: str,
    operation_id: str,
    *,
    host_id: str | None,
    tenant_limit: int,
    reason: str | None = None,
) -> PassCount | TenantFull | None:
    """Admit a drive pass by this host and count it; None when the operation is over.

    A tenant without a limit of its own may have `tenant_limit` passes at once. `reason` is why the
    one before failed.
    """
    rows = await fetch_from(
        pool,
        "begin_drive",
        (tenant_id, session_id, operation_id, host_id, tenant_limit, _storable(reason)),
    )
    if not rows:
        return None
    admitted, *counted = rows[0]
    return PassCount(*counted) if admitted else TENANT_FULL  # pyright: ignore[reportArgumentType]  # columns of the statement


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
