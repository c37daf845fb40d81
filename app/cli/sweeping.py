"""`laneway sweep`: compares the scheduler's rows with the operations' own states, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.database import with_pool
from app.cli.output import Json, notes, say, table
from harness.environment import Environment

if TYPE_CHECKING:
    from storage_pg.open_operations import Repair
    from storage_pg.storage import Pool
    from workers.settings import Settings


def sweep_now(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what differs.")] = False,
    json: Json = False,
) -> None:
    """Compare every open operation with the row that wakes it, and repair what differs. The fleet does
    this each minute; in a healthy one nothing is found."""
    from storage_pg.open_operations import sweep

    async def work(pool: Pool, settings: Settings) -> list[Repair]:
        now = Environment.system().clock.now_ms
        with notes.status("comparing"):
            return [found async for found in sweep(pool, now, settings.polls, repair=not dry_run)]

    found = with_pool(work)
    rows = [
        {
            "operationId": each.operation_id,
            "sessionId": each.session_id,
            "tenantId": each.tenant_id,
            "difference": each.difference,
            "repaired": not dry_run,
        }
        for each in found
    ]
    if json or rows:
        table(json, rows, ("operationId", "sessionId", "tenantId", "difference", "repaired"))
    if not json:
        verb = "differ" if dry_run else "differed and were repaired"
        say(False, {}, f"{len(rows)} rows {verb}" if rows else "nothing differs")
