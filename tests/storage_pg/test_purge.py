"""What is over goes after its retention, in bounded steps; what is not stays."""

from __future__ import annotations

import asyncio

import psycopg

from storage_pg.purge import DAY_MS, Gone, Retention, purge
from tests.storage_pg.kit import Kit

NOW = 1_900_000_000_000
KEEP = Retention(receipts_ms=30 * DAY_MS, expired_keys_ms=DAY_MS)


def admin(kit: Kit, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with psycopg.connect(kit.database.admin_dsn, autocommit=True) as connection:
        cursor = connection.execute(statement, parameters)  # pyright: ignore[reportArgumentType, reportCallIssue]
        return [] if cursor.description is None else cursor.fetchall()


def receipt(kit: Kit, tenant: str, accepted: int, finished: int | None) -> str:
    made = kit.environment.ids.next()
    admin(
        kit,
        "INSERT INTO laneway.operations (id, tenant_id, session_id, lane, kind, status, accepted_at,"
        " finished_at) VALUES (%s, %s, %s, 'main', 'run', %s, %s, %s)",
        made,
        tenant,
        made,
        "open" if finished is None else "done",
        accepted,
        finished,
    )
    return made


def key(kit: Kit, name: str, expires: int) -> None:
    admin(
        kit,
        "INSERT INTO laneway.idempotency_keys (tenant_id, key, fingerprint, created_at, expires_at)"
        " VALUES (%s, %s, 'f', 0, %s)",
        kit.tenant,
        name,
        expires,
    )


def receipts(kit: Kit) -> set[str]:
    return {str(row[0]) for row in admin(kit, "SELECT id::text FROM laneway.operations")}


async def test_receipts_go_after_their_retention(fresh_kit: Kit) -> None:
    kit, other = fresh_kit, fresh_kit.new_tenant()
    old = NOW - 31 * DAY_MS
    gone = [receipt(kit, tenant, old - 5, old) for tenant in (kit.tenant, other) for _ in range(5)]
    kept = [
        receipt(kit, kit.tenant, old, None),  # still open, however long
        receipt(kit, kit.tenant, old, NOW - 29 * DAY_MS),  # it took long, and ended lately
        receipt(kit, other, NOW - DAY_MS, NOW - DAY_MS + 1),
    ]
    assert receipts(kit) == {*gone, *kept}
    assert await purge(kit.pool, NOW, KEEP) == Gone(receipts=10, keys=0)
    assert receipts(kit) == set(kept)


async def test_receipts_are_kept_for_ever_unless_told_otherwise(fresh_kit: Kit) -> None:
    made = receipt(fresh_kit, fresh_kit.tenant, 1, 2)
    keep = Retention(receipts_ms=None, expired_keys_ms=0)
    assert await purge(fresh_kit.pool, NOW, keep) == Gone(0, 0)
    assert receipts(fresh_kit) == {made}


async def test_keys_go_some_time_after_they_expired(fresh_kit: Kit) -> None:
    for name, expires in (("old", NOW - 2 * DAY_MS), ("late", NOW - 1), ("used", NOW + 1)):
        key(fresh_kit, name, expires)
    assert await purge(fresh_kit.pool, NOW, KEEP) == Gone(0, 1)
    rows = admin(fresh_kit, "SELECT key FROM laneway.idempotency_keys ORDER BY key")
    assert rows == [("late",), ("used",)]


async def test_one_call_does_a_bounded_amount(fresh_kit: Kit) -> None:
    for number in range(25):
        receipt(fresh_kit, fresh_kit.tenant, 1, 2)
        key(fresh_kit, str(number), 1)
    first = await purge(fresh_kit.pool, NOW, KEEP, batch=3, most_batches=4)
    assert first == Gone(12, 12)
    assert await purge(fresh_kit.pool, NOW, KEEP, batch=3, most_batches=100) == Gone(13, 13)


async def test_two_at_once_remove_everything_once(fresh_kit: Kit) -> None:
    for number in range(40):
        receipt(fresh_kit, fresh_kit.tenant, 1, 2)
        key(fresh_kit, str(number), 1)
    found = await asyncio.gather(*(purge(fresh_kit.pool, NOW, KEEP, batch=5) for _ in range(3)))
    # Who found a batch taken by another may have stopped early.
    found.append(await purge(fresh_kit.pool, NOW, KEEP))
    assert (sum(each.receipts for each in found), sum(each.keys for each in found)) == (40, 40)
