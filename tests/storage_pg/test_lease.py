"""Leases: one owner, known at once when it is gone, harmless when it comes back."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.errors import LeaseLost, SessionInUse, SessionNotFound, StorageError
from harness.operation import values
from harness.storage.address import value
from harness.storage.writes import set_value
from storage_pg.claimed import ClaimedSession, HeldElsewhere, NoSuchSession
from storage_pg.hosts import bury_dead_hosts, cut_off_silent_hosts, get_host, list_hosts
from storage_pg.lease import HostDown, HostFull, HostIdentity, HostLease
from storage_pg.open_operations import owner_of
from storage_pg.sessions import OwnedSession, PostgresSessions
from tests.storage_pg.kit import Kit, wait_until
from tests.storage_pg.operations import Op

COUNTER = value(int, "app.counter")


async def new_session(kit: Kit) -> str:
    return (await kit.sessions.create(kit.tenant)).id


async def terminate(kit: Kit, host: str | None) -> None:
    with psycopg.connect(kit.database.admin_dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(lease_pid) FROM laneway.hosts WHERE id = %s", (host,)
        )


async def test_only_one_host_owns_a_session(kit: Kit) -> None:
    session = await new_session(kit)
    hosts = [kit.new_lease() for _ in range(3)]
    for host in hosts:
        await host.start()
    claims = await asyncio.gather(*(host.claim(kit.tenant, session) for host in hosts))
    owned = [claim for claim in claims if isinstance(claim, ClaimedSession)]
    held = [claim for claim in claims if isinstance(claim, HeldElsewhere)]
    assert (len(owned), len(held)) == (1, 2)
    winner = hosts[[isinstance(claim, ClaimedSession) for claim in claims].index(True)]
    late = await kit.lease.claim(kit.tenant, session)
    assert late == HeldElsewhere(session, winner.host_id)
    await winner.release(session)
    again = await kit.lease.claim(kit.tenant, session)
    assert isinstance(again, ClaimedSession)
    assert again.fence == owned[0].fence + 1
    for host in hosts:
        await host.close()


async def test_a_host_does_not_claim_what_it_holds(kit: Kit) -> None:
    owned = await kit.open_new()
    assert await kit.lease.claim(kit.tenant, owned.claimed.id) == HeldElsewhere(
        owned.claimed.id, kit.lease.host_id
    )
    with pytest.raises(SessionInUse, match=str(kit.lease.host_id)):
        await kit.sessions.open(kit.tenant, owned.claimed.id)


async def test_sessions_of_others_do_not_exist(kit: Kit) -> None:
    session = await new_session(kit)
    stranger = kit.new_tenant()
    assert await kit.lease.claim(stranger, session) == NoSuchSession(session)
    with pytest.raises(SessionNotFound):
        await kit.sessions.open(stranger, session)
    # And the attempt left nothing locked.
    assert isinstance(await kit.lease.claim(kit.tenant, session), ClaimedSession)


async def test_claims_that_come_together_go_together(kit: Kit) -> None:
    sessions = [await new_session(kit) for _ in range(40)]
    claims = await asyncio.gather(
        *(kit.lease.claim(kit.tenant, session) for session in sessions),
        kit.lease.claim(kit.tenant, kit.environment.ids.next()),
    )
    assert [claim.id for claim in claims[:40]] == sessions
    assert all(isinstance(claim, ClaimedSession) for claim in claims[:40])
    assert isinstance(claims[40], NoSuchSession)
    assert kit.lease.held == set(sessions)
    await asyncio.gather(*(kit.lease.release(session) for session in sessions))
    assert kit.lease.held == set()


async def test_a_cancelled_claim_is_given_back(kit: Kit) -> None:
    session = await new_session(kit)
    task = asyncio.create_task(kit.lease.claim(kit.tenant, session))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    other = kit.new_lease()
    await other.start()

    while not isinstance(await other.claim(kit.tenant, session), ClaimedSession):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert kit.lease.held == set()
    await other.close()


async def test_the_end_of_the_connection_is_noticed_at_once(kit: Kit) -> None:
    told: list[str] = []
    host = HostLease(
        kit.database.app_dsn,
        HostIdentity("told", "worker"),
        kit.environment.ids,
        on_lost=told.append,
    )
    first = await host.start()
    sessions = PostgresSessions(kit.pool, kit.writer, kit.environment, lease=host)
    owned = [await sessions.open(kit.tenant, await new_session(kit)) for _ in range(3)]
    await terminate(kit, first)
    await wait_until(lambda: bool(told))
    for one in owned:
        with pytest.raises(LeaseLost):
            await one.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    assert host.held == set()
    # A new incarnation, which owns nothing and may own again.
    await host.wait_started()
    assert host.host_id not in (None, first)
    again = await sessions.open(kit.tenant, owned[0].claimed.id)
    assert again.claimed.fence == owned[0].claimed.fence + 1
    await again.storage.commit([set_value(COUNTER, 2)], BACKGROUND)
    # Closing the old storage must not give away the new claim.
    await owned[0].storage.close(BACKGROUND)
    await again.storage.commit([set_value(COUNTER, 3)], BACKGROUND)
    await host.close()


async def test_claims_under_way_fail_with_the_connection(kit: Kit) -> None:
    session = await new_session(kit)
    with psycopg.connect(kit.database.owner_dsn) as blocker:
        # The claim waits for this row, so it is under way when its connection ends.
        blocker.execute("SELECT 1 FROM laneway.sessions WHERE id = %s FOR UPDATE", (session,))
        claim = asyncio.create_task(kit.lease.claim(kit.tenant, session))
        await asyncio.sleep(0.05)
        await terminate(kit, kit.lease.host_id)
        with pytest.raises(HostDown):
            await claim
    await kit.lease.wait_started()
    assert isinstance(await kit.lease.claim(kit.tenant, session), ClaimedSession)


async def test_a_dead_host_is_cleared_from_its_sessions(fresh_kit: Kit) -> None:
    kit = fresh_kit
    doomed = kit.new_lease()
    host = await doomed.start()
    session = await new_session(kit)
    await doomed.claim(kit.tenant, session)
    assert await bury_dead_hosts(kit.pool) == []
    await terminate(kit, host)
    await wait_until(lambda: doomed.host_id not in (host, None))
    buried = await bury_dead_hosts(kit.pool)
    assert [(dead.id, dead.name, dead.role, dead.sessions) for dead in buried] == [
        (host, "test", "worker", 1)
    ]
    assert await owner_of(kit.pool, kit.tenant, session) is None
    assert await get_host(kit.pool, host) is None
    assert {alive.id for alive in await list_hosts(kit.pool)} == {
        kit.lease.host_id,
        doomed.host_id,
    }
    await doomed.close()


async def test_a_silent_host_is_cut_off(fresh_kit: Kit) -> None:
    kit = fresh_kit
    frozen = HostLease(
        kit.database.app_dsn,
        HostIdentity("frozen", "worker"),
        kit.environment.ids,
        heartbeat_seconds=3_600,
    )
    host = await frozen.start()
    sessions = PostgresSessions(kit.pool, kit.writer, kit.environment, lease=frozen)
    zombie = await sessions.open(kit.tenant, await new_session(kit))
    assert await cut_off_silent_hosts(kit.pool) == []
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "UPDATE laneway.hosts SET heartbeat_at = now() - interval '16 s' WHERE id = %s", (host,)
        )
    assert await cut_off_silent_hosts(kit.pool) == [host]
    await wait_until(lambda: frozen.host_id not in (host, None))
    assert [dead.id for dead in await bury_dead_hosts(kit.pool)] == [host]
    heir = await kit.sessions.open(kit.tenant, zombie.claimed.id)
    await heir.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    with pytest.raises(LeaseLost):
        await zombie.storage.commit([set_value(COUNTER, 2)], BACKGROUND)
    await frozen.close()


async def test_the_heartbeat_goes_on_while_the_loop_is_blocked(fresh_kit: Kit) -> None:
    kit = fresh_kit
    host = HostLease(
        kit.database.app_dsn,
        HostIdentity("busy", "worker"),
        kit.environment.ids,
        heartbeat_seconds=0.05,
    )
    host_id = await host.start()
    before = await get_host(kit.pool, host_id)
    time.sleep(1)  # noqa: ASYNC251  # a tool that blocks the loop
    after = await get_host(kit.pool, host_id)
    assert before is not None
    assert after is not None
    assert after.heartbeat_at > before.heartbeat_at
    await host.close()


async def test_a_host_that_was_declared_dead_gives_up(kit: Kit) -> None:
    told: list[str] = []
    host = HostLease(
        kit.database.app_dsn,
        HostIdentity("late", "worker"),
        kit.environment.ids,
        heartbeat_seconds=0.05,
        on_lost=told.append,
    )
    first = await host.start()
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute("DELETE FROM laneway.hosts WHERE id = %s", (first,))
    await wait_until(lambda: bool(told))
    await host.wait_started()
    assert host.host_id != first
    await host.close()


async def test_a_host_bounds_what_it_holds(kit: Kit) -> None:
    host = HostLease(
        kit.database.app_dsn, HostIdentity("small", "worker"), kit.environment.ids, capacity=2
    )
    await host.start()
    sessions = [await new_session(kit) for _ in range(3)]
    await host.claim(kit.tenant, sessions[0])
    await host.claim(kit.tenant, sessions[1])
    with pytest.raises(HostFull):
        await host.claim(kit.tenant, sessions[2])
    await host.release(sessions[0])
    assert isinstance(await host.claim(kit.tenant, sessions[2]), ClaimedSession)
    await host.close()


async def test_leaving_frees_everything(kit: Kit) -> None:
    host = kit.new_lease()
    host_id = await host.start()
    session = await new_session(kit)
    await host.claim(kit.tenant, session)
    await host.set_draining(True)
    shown = await get_host(kit.pool, host_id)
    assert shown is not None
    assert shown.draining
    await host.close()
    await host.close()
    assert await get_host(kit.pool, host_id) is None
    assert isinstance(await kit.lease.claim(kit.tenant, session), ClaimedSession)
    with pytest.raises(HostDown):
        await host.claim(kit.tenant, session)


async def test_a_database_restart_is_survived(kit: Kit) -> None:
    # What a restart is to a client: every connection ends.
    owned = await kit.open_new()
    await owned.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    with psycopg.connect(kit.database.admin_dsn, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
    await wait_until(lambda: owned.claimed.id not in kit.lease.held)
    await kit.lease.wait_started()
    await kit.pool.check()
    again = await _open(kit, owned.claimed.id)
    stored = await again.storage.get_value(COUNTER, BACKGROUND)
    assert stored is not None
    assert stored.value == 1
    await again.storage.commit([set_value(COUNTER, 2)], BACKGROUND)


async def _open(kit: Kit, session: str) -> OwnedSession:
    while True:
        try:
            return await kit.sessions.open(kit.tenant, session)
        except (StorageError, SessionInUse):
            await asyncio.sleep(0.02)


async def test_what_an_attachment_reads_came_with_the_claim(kit: Kit) -> None:
    owned = await kit.open_new()
    op = Op(kit.environment.ids.next())
    await owned.storage.commit(op.accept(), BACKGROUND)
    await owned.storage.close(BACKGROUND)
    again = await kit.sessions.open(kit.tenant, owned.claimed.id)
    namespaces = {namespace for namespace, _, _, _ in again.claimed.control}
    assert namespaces == {"pi.lane.leaf", "pi.lane.state", "pi.op.meta", "pi.op.state"}
    await kit.pool.close()  # no read can reach the database from here on
    leaf = await again.storage.get_value(values.lane_leaf("main"), BACKGROUND)
    assert leaf is not None
    assert leaf.value is None
    lanes = await again.storage.scan_values(values.lane_leaf_inventory_prefix(), BACKGROUND)
    assert [stored.address.key for stored in lanes] == ["main"]
    for address in (values.operation_meta(op.id), values.operation_state(op.id)):
        stored: Any = await again.storage.get_value(address, BACKGROUND)
        assert stored is not None
    with pytest.raises(StorageError):
        await again.storage.get_value(COUNTER, BACKGROUND)
