"""Operations that hosts died under are begun alone, and pay for nobody else meanwhile (design §6)."""

from __future__ import annotations

from harness.context import BACKGROUND
from storage_pg.hosts import bury_dead_hosts
from storage_pg.open_operations import dispatch_due
from storage_pg.passes import TENANT_FULL, PassCount, Suspected
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit
from tests.storage_pg.operations import Op, ready, run
from tests.storage_pg.test_open_operations import accepted, begun, ended, idle_operation, query


def row(kit: Kit, op: Op) -> tuple[object, ...]:
    """What the scheduler knows of an operation: passes, who drives it, whether it is dispatched."""
    (found,) = query(
        kit,
        "SELECT passes, driven_by::text, dispatched_at IS NOT NULL FROM laneway.open_operations"
        " WHERE operation_id = %s",
        op.id,
    )
    return found


async def died_under(kit: Kit, storage: PostgresStorage, session: str, lane: str = "main") -> Op:
    """An operation with two passes that nobody ended."""
    op = await accepted(kit, storage, lane)
    for _ in range(2):
        assert isinstance(await begun(kit, session, op), PassCount)
    return op


async def test_the_third_pass_after_deaths_is_begun_alone_or_not_at_all(kit: Kit) -> None:
    owned = await kit.open_new()
    session = owned.claimed.id
    op = await died_under(kit, owned.storage, session)
    query(
        kit, "UPDATE laneway.open_operations SET dispatched_at = 1 WHERE operation_id = %s", op.id
    )
    for _ in range(2):
        # Refused without being counted; and its owner answers for it, so no burial charges it.
        assert await begun(kit, session, op, "why") == Suspected(3, "why")
        assert row(kit, op) == (2, kit.lease.host_id, False)
    assert await begun(kit, session, op, "why", alone=True) == PassCount(3, "why")
    assert await begun(kit, session, op) == Suspected(4, "why")
    # Progress clears it.
    await owned.storage.commit(op.move(run(ready())), BACKGROUND)
    assert await begun(kit, session, op) == PassCount(1, None)


async def test_passes_that_end_in_order_make_no_suspect(kit: Kit) -> None:
    owned = await kit.open_new()
    session = owned.claimed.id
    op = await accepted(kit, owned.storage)
    for number in range(1, 6):
        assert await begun(kit, session, op, "a hook") == PassCount(number, "a hook")
        await ended(kit, session, op, reason="a hook")


async def test_a_suspect_of_a_full_tenant_waits_for_room_first(fresh_kit: Kit) -> None:
    owned = await fresh_kit.open_new()
    session = owned.claimed.id
    op = await died_under(fresh_kit, owned.storage, session)
    other = await accepted(fresh_kit, owned.storage, "other")
    await begun(fresh_kit, session, other)
    assert await begun(fresh_kit, session, op, limit=1) is TENANT_FULL
    assert await begun(fresh_kit, session, op, limit=1, alone=True) is TENANT_FULL
    await ended(fresh_kit, session, other)
    assert await begun(fresh_kit, session, op, limit=1) == Suspected(3, None)


async def test_a_death_under_a_suspect_is_charged_to_nobody_else(fresh_kit: Kit) -> None:
    kit = fresh_kit
    opening, opening_session = await idle_operation(kit)
    assert len(await dispatch_due(kit.pool, kit.environment.clock.now_ms())) == 1
    await kit.sessions.open(kit.tenant, opening_session.claimed.id)
    driven = await kit.open_new()
    suspect = await died_under(kit, driven.storage, driven.claimed.id)
    await begun(kit, driven.claimed.id, suspect, alone=True)
    await kit.lose_lease()
    await bury_dead_hosts(kit.pool)
    assert [row(kit, op)[0] for op in (suspect, opening)] == [3, 0]


async def test_a_death_is_not_charged_to_a_suspect_that_waits(fresh_kit: Kit) -> None:
    kit = fresh_kit
    owned = await kit.open_new()
    session = owned.claimed.id
    op = await died_under(kit, owned.storage, session)
    await kit.lose_lease()
    await bury_dead_hosts(kit.pool)
    assert len(await dispatch_due(kit.pool, kit.environment.clock.now_ms())) == 1
    await kit.sessions.open(kit.tenant, session)
    assert await begun(kit, session, op) == Suspected(3, None)
    await kit.lose_lease()
    await bury_dead_hosts(kit.pool)
    assert row(kit, op)[0] == 2


async def test_deaths_while_its_session_was_opened_make_a_suspect_too(fresh_kit: Kit) -> None:
    kit = fresh_kit
    op, owned = await idle_operation(kit)
    session = owned.claimed.id
    # Its state is the one that the deaths are counted at.
    await kit.sessions.open(kit.tenant, session)
    await begun(kit, session, op)
    await ended(kit, session, op)
    for _ in range(2):
        await kit.lose_lease()
        await bury_dead_hosts(kit.pool)
        now = kit.environment.clock.now_ms()
        assert len(await dispatch_due(kit.pool, now)) == 1
        await kit.sessions.open(kit.tenant, session)
    await kit.lose_lease()
    await bury_dead_hosts(kit.pool)
    assert row(kit, op)[0] == 3
    await kit.sessions.open(kit.tenant, session)
    assert await begun(kit, session, op) == Suspected(4, None)


async def test_processes_of_the_release_before_begin_passes_as_they_did(kit: Kit) -> None:
    owned = await kit.open_new()
    session = owned.claimed.id
    op = await died_under(kit, owned.storage, session)
    old = "SELECT * FROM laneway.begin_drive(%s, %s, %s, %s, 64, NULL::text)"
    asked = (kit.tenant, session, op.id, kit.lease.host_id)
    assert query(kit, old, *asked) == [(True, 3, None)]
    assert await begun(kit, session, op) == Suspected(4, None)
