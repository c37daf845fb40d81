"""The doctor's checks of the database server: reachable, the right one, large enough, on time, ours to use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from app.doctor.findings import Finding, bad, ok, warn
from harness.clock import Clock
from storage_pg import schema as schema_of
from storage_pg.connect import connect
from storage_pg.operator import ObservedHost
from storage_pg.pooler import PoolerOnDirectUrl, refuse_pooler
from storage_pg.queries import QUERIES
from storage_pg.release import SchemaAhead, SchemaBehind
from workers.settings import Settings

_OLDEST, _NEWEST = 15, 18
# A difference of clocks moves the instants at which retries begin; the sweep takes this much for granted.
_SKEW_WARN_MS, _SKEW_FAIL_MS = 500, 5_000
# Of an API process, beside the host's: the catalogue's engine, twice its size at the most.
_HOST_CONNECTIONS = 5
# Left for everything else that locks: tables, their partitions and indexes, in each transaction.
_LOCKS_ELSEWHERE = 0.5


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What the server says of itself, and how its clock differs from ours (milliseconds)."""

    version: int
    max_connections: int
    reserved: int
    lock_capacity: int
    skew_ms: int
    user: str
    database: str
    identity: str


async def read_facts(connection: AsyncConnection[TupleRow], clock: Clock) -> ServerFacts:
    """Ask the server; the clocks are compared at the middle of the round trip."""
    before = clock.now_ms()
    row = await (await connection.execute(QUERIES["server_facts"])).fetchone()
    after = clock.now_ms()
    assert row is not None
    facts: tuple[Any, ...] = row  # Any: the statement's columns
    version, connections, reserved, locks, now, user, database, identity = facts
    skew = now - (before + after) // 2
    return ServerFacts(
        version // 10_000, connections, reserved, locks, skew, user, database, identity
    )


async def reach(settings: Settings, clock: Clock) -> tuple[list[Finding], ServerFacts | None]:
    """Both addresses: do they answer, are they one database, does the direct one lead straight there?"""
    pooled, facts = await _answers("database", "LANEWAY_DATABASE_URL", settings.database_url, clock)
    direct, straight = await _answers(
        "direct database", "LANEWAY_DIRECT_DATABASE_URL", settings.direct_url, clock
    )
    found = [pooled, direct]
    if facts is not None and straight is not None:
        if facts.identity != straight.identity:
            found.append(
                bad(
                    "same database",
                    f"the two addresses lead to {facts.identity} and {straight.identity}",
                    "Let both lead to one database of one server.",
                )
            )
        found.append(await _straight(settings.direct_url))
    return found, facts if straight is not None else None


async def _answers(
    check: str, variable: str, dsn: str, clock: Clock
) -> tuple[Finding, ServerFacts | None]:
    try:
        async with await connect(dsn, "laneway-doctor") as connection:
            facts = await read_facts(connection, clock)
    except (psycopg.Error, OSError) as error:
        said = str(error).strip().partition("\n")[0]
        return bad(check, f"no answer: {said}", f"Check {variable} and the network."), None
    seen = f"PostgreSQL {facts.version}, database {facts.database}, role {facts.user}"
    if not _OLDEST <= facts.version <= _NEWEST:
        advice = f"Laneway is made for PostgreSQL {_OLDEST} to {_NEWEST}."
        return warn(check, seen, advice), facts
    return ok(check, seen), facts


async def _straight(dsn: str) -> Finding:
    try:
        await refuse_pooler(dsn)
    except PoolerOnDirectUrl:
        return bad(
            "no pooler",
            "the direct address leads through a transaction-mode pooler",
            "Set LANEWAY_DIRECT_DATABASE_URL to the server itself: leases are locks of one connection.",
        )
    except (psycopg.Error, OSError) as error:
        said = str(error).strip().partition("\n")[0]
        return bad("no pooler", f"could not tell: {said}", "Run the doctor again.")
    return ok("no pooler", "the direct address leads straight to the server")


async def schema(settings: Settings) -> Finding:
    """Whether this build works with the database's schema."""
    try:
        await asyncio.to_thread(schema_of.check, settings.direct_url)
        found = await asyncio.to_thread(schema_of.current, settings.direct_url)
    except SchemaBehind as error:
        return bad("schema", str(error), "Run `laneway migrate`.")
    except SchemaAhead as error:
        return bad("schema", str(error), "Upgrade this build; others may be newer already.")
    if found != schema_of.head():
        seen = f"at {found}; this build's newest is {schema_of.head()}"
        advice = "Finish the deploy: `laneway migrate --after` when no older process runs."
        return warn("schema", seen, advice)
    return ok("schema", f"at {found}")


def clock_skew(facts: ServerFacts) -> Finding:
    """Whether this machine and the database agree on the time."""
    skew = facts.skew_ms
    seen = f"the database's clock is {abs(skew)} ms {'ahead' if skew > 0 else 'behind'}"
    advice = "Let a time service (NTP) set both clocks: retries wait for instants of this clock."
    if abs(skew) >= _SKEW_FAIL_MS:
        return bad("clock", seen, advice)
    return warn("clock", seen, advice) if abs(skew) >= _SKEW_WARN_MS else ok("clock", seen)


async def role(connection: AsyncConnection[TupleRow], facts: ServerFacts) -> Finding:
    """Whether row-level security holds the application's role."""
    row = await (await connection.execute(QUERIES["role_is_safe"], (facts.user,))).fetchone()
    if row is not None and row[0]:
        return ok("row security", f"role {facts.user} is held to it")
    return bad(
        "row security",
        f"role {facts.user} is a superuser, may bypass row security, or owns tables",
        "Use a role that only logs in (`CREATE ROLE laneway_app LOGIN`), and run `laneway migrate`.",
    )


def capacity(settings: Settings, facts: ServerFacts, hosts: list[ObservedHost]) -> list[Finding]:
    """Whether the server's connections and locks suffice for the hosts that live, at least one of each role
    as this process is configured."""
    live = [each for each in hosts if each.alive]
    workers = max(1, sum(each.role == "worker" for each in live))
    apis = max(1, sum(each.role == "api" for each in live))
    return [_connections(settings, facts, workers, apis), _locks(settings, facts, workers + apis)]


def _connections(settings: Settings, facts: ServerFacts, workers: int, apis: int) -> Finding:
    size = settings.pool_size
    wanted = workers * (size + _HOST_CONNECTIONS) + apis * (3 * size + _HOST_CONNECTIONS)
    direct = (workers + apis) * 4
    there = facts.max_connections - facts.reserved
    fleet = f"{workers} workers and {apis} API processes"
    if direct > there:
        return bad(
            "connections",
            f"{fleet} hold {direct} direct connections; the server has {there}",
            "Raise max_connections, or run fewer, larger processes.",
        )
    if wanted > there:
        return warn(
            "connections",
            f"{fleet} open up to {wanted} connections; the server has {there}",
            "Raise max_connections, lower LANEWAY_POOL_SIZE, or put a pooler before "
            "LANEWAY_DATABASE_URL (not before the direct address).",
        )
    return ok("connections", f"up to {wanted} of {there} for {fleet}")


def _locks(settings: Settings, facts: ServerFacts, hosts: int) -> Finding:
    wanted = hosts * settings.max_sessions
    there = int(facts.lock_capacity * _LOCKS_ELSEWHERE)
    seen = f"{hosts} hosts own up to {wanted} sessions; the lock table takes {facts.lock_capacity}"
    if wanted > there:
        return bad(
            "locks",
            seen,
            "Raise max_locks_per_transaction (it needs a restart) or lower LANEWAY_MAX_SESSIONS: "
            "when that table is full, every statement fails.",
        )
    return ok("locks", seen)
