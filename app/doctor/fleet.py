"""The doctor's checks of what is in the database: partitions, hosts, work that nobody drives, the queue, the sweep."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable

import psycopg
from procrastinate import sql as queue_sql
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from app.doctor.findings import Finding, bad, ok, warn
from storage_pg.fleet_state import FleetState
from storage_pg.layout import PARTITIONED
from storage_pg.open_operations import sweep
from storage_pg.operator import ObservedHost
from storage_pg.partitions import Partition, inspect, spans_from
from storage_pg.queries import QUERIES
from storage_pg.storage import Pool
from workers.dispatcher import QUEUE
from workers.settings import Settings

# An operation that has been due and undriven for this long has been forgotten, or nobody has room.
_WAIT_WARN_MS, _WAIT_FAIL_MS = 10_000, 60_000
# More finished jobs than this are not just finished: nobody removes them.
_FEW_JOBS = 100
_QUEUE_FUNCTION = re.compile(r"\bprocrastinate_\w+_v\d+\b")


async def partitions(settings: Settings, now_ms: int) -> Finding:
    """Whether the coming periods have their partitions."""

    def look() -> list[Partition]:
        with psycopg.connect(settings.direct_url, autocommit=True) as connection:
            return inspect(connection)

    found = await asyncio.to_thread(look)
    spans = list(spans_from(now_ms, settings.partitions_ahead + 1, settings.partition_period))
    covered = [all(_covers(found, table, span.start_ms) for table in PARTITIONED) for span in spans]
    ahead = covered.index(False) if False in covered else len(covered)
    advice = "Run `laneway migrate`, and set LANEWAY_OWNER_DATABASE_URL for workers to do it by themselves."
    seen = f"{ahead} of {len(spans)} periods ({settings.partition_period}), this one included"
    if ahead == 0:
        return bad("partitions", seen, advice)
    if ahead < len(spans):
        return warn("partitions", seen, advice)
    full = [each.name for each in found if each.start_ms is None and each.rows > 0]
    if full:
        advice = "Rows were written for which no partition was there: they are never retired."
        return warn("partitions", f"{', '.join(full)} hold rows", advice)
    return ok("partitions", seen)


def _covers(found: list[Partition], table: str, instant: int) -> bool:
    return any(
        each.table == table
        and each.start_ms is not None
        and each.end_ms is not None
        and each.start_ms <= instant < each.end_ms
        for each in found
    )


def owner_address(settings: Settings) -> Finding:
    """Whether workers can make partitions."""
    if settings.owner_database_url is None:
        advice = "Set LANEWAY_OWNER_DATABASE_URL on workers, or run `laneway migrate` each period."
        return warn("partition maker", "no LANEWAY_OWNER_DATABASE_URL here", advice)
    return ok("partition maker", "LANEWAY_OWNER_DATABASE_URL is set")


def hosts(settings: Settings, found: list[ObservedHost], state: FleetState) -> list[Finding]:
    """Whether somebody lives who drives, and whether the dead are put away."""
    dead = [each for each in found if not each.alive]
    silent = [
        each for each in found if each.alive and each.silent_seconds > settings.silent_seconds
    ]
    live = Counter(each.role for each in found if each.alive and not each.draining)
    open_now = sum(part.number for part in state.operations)
    seen = f"{live['worker']} workers and {live['api']} API processes live"
    findings: list[Finding] = []
    if live["worker"]:
        findings.append(ok("workers", seen))
    elif open_now:
        findings.append(bad("workers", f"{seen}; {open_now} operations are open", "Start workers."))
    else:
        findings.append(warn("workers", seen, "Start workers before work comes."))
    if dead:
        names = ", ".join(each.name for each in dead)
        findings.append(
            warn(
                "dead hosts", f"still on record: {names}", "Any live worker puts them away at once."
            )
        )
    if silent:
        names = ", ".join(each.name for each in silent)
        advice = (
            "They are cut off by any live worker; look for a machine that is frozen or cut off."
        )
        findings.append(warn("silent hosts", names, advice))
    if not dead and not silent:
        findings.append(ok("dead hosts", "none"))
    return findings


def undriven(state: FleetState, now_ms: int) -> Finding:
    """Whether an operation is due and nobody drives it."""
    waiting = sum(part.number for part in state.operations if part.state == "waiting")
    if state.oldest_waiting is None:
        return ok("due work", "nothing waits for a drive")
    late = max(now_ms - state.oldest_waiting, 0)
    seen = f"{waiting} operations wait for a drive, one of them for {late / 1000:.1f} s"
    advice = (
        "`laneway operation list --state waiting` shows them. Start more workers when all are busy "
        "(`laneway_drives`), raise the tenant's limit, or `laneway operation wake` one that is stuck."
    )
    if late >= _WAIT_FAIL_MS:
        return bad("due work", seen, advice)
    return warn("due work", seen, advice) if late >= _WAIT_WARN_MS else ok("due work", seen)


async def queue(connection: AsyncConnection[TupleRow]) -> Finding:
    """Whether the job queue's objects are those that this build's library calls."""
    wanted = {
        name for query in queue_sql.queries.values() for name in _QUEUE_FUNCTION.findall(query)
    }
    rows = await (await connection.execute(QUERIES["queue_functions"])).fetchall()
    missing = sorted(wanted - {str(row[0]) for row in rows})
    if missing:
        advice = "The queue's library and its schema differ: run `laneway migrate` of this build."
        return bad("job queue", f"missing: {', '.join(missing)}", advice)
    row = await (await connection.execute(QUERIES["queue_backlog"], (QUEUE,))).fetchone()
    assert row is not None
    waiting, over = int(row[0]), int(row[1])
    if over > _FEW_JOBS:
        advice = "Finished jobs are removed as they end: look for workers of another version."
        return warn("job queue", f"{over} finished jobs lie about", advice)
    return ok("job queue", f"{waiting} jobs wait")


async def differences(pool: Pool, settings: Settings, now: Callable[[], int]) -> Finding:
    """What a sweep would repair."""
    found: Counter[str] = Counter()
    async for each in sweep(pool, now, settings.polls, repair=False):
        found[each.difference] += 1
    if not found:
        return ok("sweep", "every open operation has its row")
    seen = ", ".join(f"{number} {name}" for name, number in sorted(found.items()))
    return bad("sweep", seen, "Run `laneway sweep`, and report it: no code path should lead here.")
