"""The room of a fleet: what its workers may still be sent."""

from __future__ import annotations

import psycopg

from harness.context import BACKGROUND
from storage_pg.lease import HostIdentity, HostLease
from storage_pg.open_operations import dispatch_due
from tests.storage_pg.kit import Kit
from tests.storage_pg.test_open_operations import accepted, begun, idle_operation


async def test_what_a_leaving_host_drives_takes_no_room_from_those_that_stay(
    fresh_kit: Kit,
) -> None:
    kit = fresh_kit
    driven = await kit.open_new()
    op = await accepted(kit, driven.storage)
    await begun(kit, driven.claimed.id, op)
    staying = HostLease(
        kit.database.app_dsn, HostIdentity("staying", "worker", capacity=1), kit.environment.ids
    )
    await staying.start()
    await kit.lease.set_draining(True)
    waiting, owned = await idle_operation(kit)
    del owned
    now = kit.environment.clock.now_ms()
    assert [d.operation_id for d in await dispatch_due(kit.pool, now)] == [waiting.id]
    # And no more than there is room for.
    await idle_operation(kit)
    assert await dispatch_due(kit.pool, now + 1_000) == []
    await driven.storage.close(BACKGROUND)
    await staying.close()


async def test_who_has_less_than_a_share_is_sent_though_there_is_no_room(fresh_kit: Kit) -> None:
    kit = fresh_kit
    crowd = await kit.open_new()
    for index in range(64):
        await begun(kit, crowd.claimed.id, await accepted(kit, crowd.storage, f"lane-{index}"))
    await idle_operation(kit)
    now = kit.environment.clock.now_ms()
    # One tenant has everything, so it has its share.
    assert await dispatch_due(kit.pool, now) == []
    kit.tenant = kit.new_tenant()
    few = {(await idle_operation(kit))[0].id for _ in range(3)}
    now = kit.environment.clock.now_ms()
    assert {d.operation_id for d in await dispatch_due(kit.pool, now)} == few
    assert await dispatch_due(kit.pool, now + 1) == []


async def test_five_thousand_of_one_tenant_are_before_nobody_elses_one(fresh_kit: Kit) -> None:
    kit = fresh_kit
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "INSERT INTO laneway.open_operations"
            " (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)"
            " SELECT gen_random_uuid(), %s, gen_random_uuid(), 'main', 'run', n, n"
            " FROM generate_series(1, 5000) AS n",
            (kit.tenant,),
        )
    now = kit.environment.clock.now_ms()
    # The one worker has room for 64, and the crowd is first.
    assert len(await dispatch_due(kit.pool, now)) == 64
    crowd, kit.tenant = kit.tenant, kit.new_tenant()
    single, _ = await idle_operation(kit)
    now = kit.environment.clock.now_ms()
    assert [d.operation_id for d in await dispatch_due(kit.pool, now)] == [single.id]
    # Later, too, the crowd gets no more than there is room for.
    again = await dispatch_due(kit.pool, now + 4_000)
    assert single.id in {d.operation_id for d in again}
    assert sum(d.tenant_id == crowd for d in again) <= 63
