"""The room of a fleet: what its workers may still be sent."""

from __future__ import annotations

from harness.context import BACKGROUND
from storage_pg.lease import HostIdentity, HostLease
from storage_pg.open_operations import dispatch_due
from tests.storage_pg.kit import Kit
from tests.storage_pg.test_open_operations import accepted, idle_operation


async def test_what_a_leaving_host_drives_takes_no_room_from_those_that_stay(
    fresh_kit: Kit,
) -> None:
    kit = fresh_kit
    driven = await kit.open_new()
    await accepted(kit, driven.storage)
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
