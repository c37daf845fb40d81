"""A connection that dies without a word is noticed by both sides, within seconds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
import time
from urllib.parse import urlsplit

import psycopg
import pytest

from app.http.services import open_services
from harness.context import BACKGROUND
from harness.errors import LeaseLost, StorageError
from harness.storage.address import value
from harness.storage.writes import set_value
from storage_pg.claimed import ClaimedSession
from storage_pg.hosts import bury_dead_hosts, cut_off_silent_hosts
from storage_pg.lease import HostDown, HostIdentity, HostLease
from storage_pg.sessions import OwnedSession, PostgresSessions
from tests.postgres import Database
from tests.silent_network import SilentNetwork
from tests.storage_pg.kit import Kit, wait_until
from tests.workers.kit import Fleet

COUNTER = value(int, "app.counter")


def _lease(kit: Kit, dsn: str) -> HostLease:
    return HostLease(
        dsn,
        HostIdentity("cut off", "worker"),
        kit.environment.ids,
        heartbeat_seconds=0.1,
        answer_seconds=0.5,
    )


async def test_a_silent_lease_connection_is_noticed_by_both_sides(fresh_kit: Kit) -> None:
    kit = fresh_kit
    async with SilentNetwork(kit.database.direct_dsn).running() as network:
        lease = _lease(kit, network.dsn)
        await lease.start()
        # Its commits and reads go another way, which works on: it must not use them any more.
        sessions = PostgresSessions(kit.pool, kit.writer, kit.environment, lease=lease)
        owned = await sessions.open(kit.tenant, (await kit.sessions.create(kit.tenant)).id)
        before = lease.host_id
        network.fall_silent()
        # This side: what it held is lost, although nothing came to tell it.
        await wait_until(lambda: owned.claimed.id not in lease.held)
        assert lease.host_id is None
        with pytest.raises(LeaseLost, match="not answered"):
            await owned.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
        # That side: the database still sees a client. Another host ends it and takes over.
        taken = await _taken_over(kit, owned)
        assert taken.fence > owned.claimed.fence
        network.speak()
        await lease.wait_started()
        assert lease.host_id != before
        await lease.close()


async def test_a_zombie_on_a_silent_network_writes_nothing(fresh_kit: Kit) -> None:
    kit = fresh_kit
    async with SilentNetwork(kit.database.direct_dsn).running() as network:
        # It is patient: nothing but the others' verdict ends its lease.
        lease = HostLease(
            network.dsn,
            HostIdentity("cut off", "worker"),
            kit.environment.ids,
            heartbeat_seconds=0.1,
            answer_seconds=1_000,
        )
        await lease.start()
        sessions = PostgresSessions(kit.pool, kit.writer, kit.environment, lease=lease)
        owned = await sessions.open(kit.tenant, (await kit.sessions.create(kit.tenant)).id)
        network.fall_silent()
        await _taken_over(kit, owned)
        assert owned.claimed.id in lease.held
        with pytest.raises(LeaseLost):
            await owned.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
        network.speak()
        await wait_until(lambda: not lease.held)
        await lease.close()


async def _taken_over(kit: Kit, owned: OwnedSession) -> ClaimedSession:
    """The claim of another host, as soon as it can have one."""
    other = _lease(kit, kit.database.direct_dsn)
    await other.start()
    try:
        while True:
            await cut_off_silent_hosts(kit.pool, 1.0)
            await bury_dead_hosts(kit.pool)
            # On a slow machine this host itself may fall silent for a moment.
            with contextlib.suppress(HostDown):
                claim = await other.claim(kit.tenant, owned.claimed.id)
                if isinstance(claim, ClaimedSession):
                    return claim
            await asyncio.sleep(0.02)
    finally:
        await other.close()


async def test_a_statement_that_gets_no_answer_ends_the_lease(kit: Kit) -> None:
    async with SilentNetwork(kit.database.direct_dsn).running() as network:
        lease = _lease(kit, network.dsn)
        await lease.start()
        session = (await kit.sessions.create(kit.tenant)).id
        network.fall_silent()
        with pytest.raises(StorageError, match="not answered"):
            await lease.claim(kit.tenant, session)
        network.speak()
        await lease.close()


async def test_a_blocked_event_loop_is_no_silent_database(kit: Kit) -> None:
    lease = _lease(kit, kit.database.direct_dsn)
    before = await lease.start()
    asking = asyncio.ensure_future(
        lease.claim(kit.tenant, (await kit.sessions.create(kit.tenant)).id)
    )
    await asyncio.sleep(0)
    # As a tool may do it: longer than the lease waits for an answer, with a statement under way.
    time.sleep(0.8)  # noqa: ASYNC251
    assert isinstance(await asking, ClaimedSession)
    assert lease.host_id == before
    await lease.close()


async def test_the_servers_side_of_a_lease_knows_how_long_to_wait(kit: Kit) -> None:
    connection = kit.lease._connection
    assert connection is not None
    names = [
        "client_connection_check_interval",
        "tcp_keepalives_idle",
        "tcp_keepalives_interval",
        "tcp_keepalives_count",
        "tcp_user_timeout",
    ]
    raw = connection._connection
    found = [
        (await (await raw.execute("SELECT current_setting(%s)", (name,))).fetchone() or ("",))[0]
        for name in names
    ]
    assert found == ["1s", "5", "2", "3", "10000"]


def _sockets_to(port: int) -> list[socket.socket]:
    """This process's connections to a port of this machine."""
    found: list[socket.socket] = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(int(name)).st_mode):
                continue
            copy = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # gone since it was listed
        try:
            mine = copy.family == socket.AF_INET and copy.getpeername()[1] == port
        except OSError:
            mine = False
        if mine:
            found.append(copy)
        else:
            copy.close()
    return found


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="descriptors are listed on Linux")
async def test_every_connection_of_a_process_notices_a_dead_network(
    fresh_database: Database,
) -> None:
    fleet = Fleet(fresh_database)
    try:
        worker = await fleet.worker(heartbeat_seconds=0.05)
        async with open_services(fleet.settings()) as services:
            session = await fleet.session()
            run = await fleet.prompt(worker, session, "echo: hello")
            await fleet.settled(run)
            assert await services.catalog.find_tenant("nobody") is None
            with psycopg.connect(fresh_database.admin_dsn, autocommit=True) as admin:
                expected = {"laneway", "laneway-commit", "laneway-lease", "laneway-heartbeat"}
                expected |= {"laneway-hints", "laneway-jobs", "laneway-catalog"}

                def named() -> set[str]:
                    rows = admin.execute(
                        "SELECT application_name FROM pg_stat_activity"
                        " WHERE datname = current_database()"
                    )
                    return {row[0] for row in rows}

                await wait_until(lambda: expected <= named())
            sockets = _sockets_to(urlsplit(fresh_database.admin_dsn).port or 0)
            try:
                assert len(sockets) > len(expected)
                for each in sockets:
                    assert each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                    assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
                    assert each.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
            finally:
                for each in sockets:
                    each.close()
    finally:
        await fleet.close()
