"""What the model of the hosting protocol says must not happen, made to happen on a real database."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.errors import LeaseLost, StorageCorrupt
from harness.storage.address import value
from harness.storage.writes import set_value
from storage_pg.claimed import ClaimedSession, NoSuchSession
from storage_pg.due import PollSettings
from storage_pg.hosts import bury_dead_hosts
from storage_pg.lease import HostDown
from storage_pg.lease_connection import LeaseConnection
from storage_pg.open_operations import owner_of
from storage_pg.sessions import PostgresSessions
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit, wait_until

COUNTER = value(int, "app.counter")


async def test_a_buried_host_writes_nothing_though_nobody_claimed_yet(fresh_kit: Kit) -> None:
    kit = fresh_kit
    session = (await kit.sessions.create(kit.tenant)).id
    claimed = await kit.lease.claim(kit.tenant, session)
    assert isinstance(claimed, ClaimedSession)

    async def release() -> None:
        """The zombie has nothing to give back."""

    # Not watched: like a process that was stopped, it does not hear that its lease is gone.
    zombie = PostgresStorage(
        claimed,
        pool=kit.pool,
        writer=kit.writer,
        clock=kit.environment.clock,
        polls=PollSettings(),
        release=release,
    )
    await zombie.commit([set_value(COUNTER, 1)], BACKGROUND)
    await kit.lose_lease()
    assert [dead.sessions for dead in await bury_dead_hosts(kit.pool)] == [1]
    with pytest.raises(LeaseLost):
        await zombie.commit([set_value(COUNTER, 2)], BACKGROUND)


async def test_a_release_that_fails_leaves_no_owner_behind(fresh_kit: Kit) -> None:
    kit = fresh_kit
    session = (await kit.open_new()).claimed.id
    first = kit.lease.host_id
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "CREATE FUNCTION laneway.refuse() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE EXCEPTION 'no'; END $$"
        )
        owner.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON laneway.sessions FOR EACH ROW "
            "WHEN (NEW.owner_host IS NULL) EXECUTE FUNCTION laneway.refuse()"
        )
        await kit.lease.release(session)
        owner.execute("DROP TRIGGER refuse ON laneway.sessions")
    # The host no longer is what the table says it is, so that it is cleared away like a dead one.
    await wait_until(lambda: kit.lease.host_id not in (first, None))
    await bury_dead_hosts(kit.pool)
    assert await owner_of(kit.pool, kit.tenant, session) is None


async def test_a_claim_that_cannot_be_read_harms_no_other_and_is_given_back(kit: Kit) -> None:
    good = (await kit.sessions.create(kit.tenant)).id
    bad = (await kit.sessions.create(kit.tenant)).id
    also_good = (await kit.sessions.create(kit.tenant)).id
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute("SELECT set_config('laneway.tenant', %s, false)", (kit.tenant,))
        owner.execute("UPDATE laneway.sessions SET usage = '[1]' WHERE id = %s", (bad,))
    answers = await asyncio.gather(
        *(kit.lease.claim(kit.tenant, session) for session in (good, bad, also_good)),
        return_exceptions=True,
    )
    assert [type(answer) for answer in answers] == [ClaimedSession, StorageCorrupt, ClaimedSession]
    assert kit.lease.held == {good, also_good}
    # Releases go in order, so this one comes after that of the unreadable session.
    await kit.lease.release(good)
    assert await owner_of(kit.pool, kit.tenant, bad) is None


async def test_an_id_spelled_otherwise_is_no_session_and_harms_no_claim(kit: Kit) -> None:
    session = (await kit.sessions.create(kit.tenant)).id
    answers = await asyncio.gather(
        kit.lease.claim(kit.tenant, session.upper()),
        kit.lease.claim(kit.tenant, "no id"),
        kit.lease.claim(kit.tenant, session),
    )
    assert [type(answer) for answer in answers] == [NoSuchSession, NoSuchSession, ClaimedSession]


async def test_a_claim_answered_by_a_connection_that_is_over_holds_nothing(kit: Kit) -> None:
    session = (await kit.sessions.create(kit.tenant)).id
    connection = kit.lease._connection  # an answer that crosses the end on its way
    assert connection is not None
    execute = connection.execute

    async def execute_and_end(query: str, parameters: tuple[object, ...] = ()):
        cursor = await execute(query, parameters)
        connection.cut("declared dead by another host")
        return cursor

    connection.execute = execute_and_end  # pyright: ignore[reportAttributeAccessIssue]  # see above
    with pytest.raises(HostDown):
        await kit.lease.claim(kit.tenant, session)
    assert kit.lease.held == frozenset()
    await kit.lease.wait_started()
    again = await PostgresSessions(kit.pool, kit.writer, kit.environment, lease=kit.lease).open(
        kit.tenant, session
    )
    await again.storage.commit([set_value(COUNTER, 1)], BACKGROUND)


async def test_a_connection_that_is_cut_when_its_answer_is_here_is_closed(kit: Kit) -> None:
    ended: list[str] = []
    made = await LeaseConnection.open(kit.database.direct_dsn, ended.append, 60.0)
    raw = made._connection
    execute = raw.execute

    async def execute_and_cut(query: bytes, parameters: tuple[object, ...] = ()):
        cursor = await execute(query, parameters)
        made.cut("declared dead by another host")
        return cursor

    raw.execute = execute_and_cut  # pyright: ignore[reportAttributeAccessIssue]  # an answer and an end that cross
    await made.execute("ping")
    assert raw.closed
    assert ended == ["declared dead by another host"]
