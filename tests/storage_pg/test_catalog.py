"""The catalogue: tenants, keys, listings, receipts, idempotent answers; each tenant alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.errors import InvalidArgument
from harness.operation import values
from harness.storage.address import value
from harness.storage.metadata import SessionMetadata
from harness.storage.writes import insert_entry, set_value
from harness.testing.conformance.samples import Samples
from storage_pg.catalog import Catalog, Cursor, NameTaken, open_engine
from storage_pg.idempotency import IdempotencyKey, KeyConflict, Replay
from storage_pg.reader import ReadOnlySession
from storage_pg.receipts import find_receipt
from storage_pg.sessions import NewSession, SessionExists
from tests.storage_pg.kit import Kit
from tests.storage_pg.operations import Op


@pytest.fixture
async def catalog(kit: Kit) -> AsyncIterator[Catalog]:
    engine = open_engine(kit.database.app_dsn)
    yield Catalog(engine, kit.environment.clock, kit.environment.ids)
    await engine.dispose()


async def test_tenants(catalog: Catalog) -> None:
    name = "acme " + catalog._ids.next()
    made = await catalog.create_tenant(name, {"concurrentDrives": 2})
    with pytest.raises(NameTaken):
        await catalog.create_tenant(name)
    assert await catalog.get_tenant(made.id) == made
    assert await catalog.find_tenant(name) == made
    assert made in await catalog.list_tenants()
    assert await catalog.set_limits(made.id, {"concurrentDrives": 5})
    found = await catalog.get_tenant(made.id)
    assert found is not None
    assert found.limits == {"concurrentDrives": 5}
    assert not await catalog.set_limits(catalog._ids.next(), {})


async def test_a_key_speaks_for_its_tenant_until_it_does_not(catalog: Catalog, kit: Kit) -> None:
    minted = await catalog.create_key(kit.tenant, "ci", ["sessions:read"])
    assert minted.plain.startswith(f"lw_{minted.key.id}_")
    assert minted.plain.rpartition("_")[2] not in repr(minted)
    owner = await catalog.authenticate(minted.plain)
    assert owner is not None
    assert (owner.key.tenant_id, owner.key.scopes) == (kit.tenant, ("sessions:read",))
    wrong = minted.plain[:-1] + ("0" if minted.plain[-1] != "0" else "1")
    for presented in (wrong, "", "lw_", "lw_x_y", minted.plain + "0", minted.plain.upper()):
        assert await catalog.authenticate(presented) is None, presented
    assert [key.id for key in await catalog.list_keys(kit.tenant)] == [minted.key.id]
    other = kit.new_tenant()
    assert await catalog.list_keys(other) == []
    assert not await catalog.revoke_key(other, minted.key.id)
    assert await catalog.disable_tenant(kit.tenant)
    assert await catalog.authenticate(minted.plain) is None
    assert await catalog.enable_tenant(kit.tenant)
    assert await catalog.authenticate(minted.plain) is not None
    assert await catalog.revoke_key(kit.tenant, minted.key.id)
    assert not await catalog.revoke_key(kit.tenant, minted.key.id)
    assert await catalog.authenticate(minted.plain) is None


async def test_an_expired_key_is_no_key(catalog: Catalog, kit: Kit) -> None:
    now = kit.environment.clock.now_ms()
    late = await catalog.create_key(kit.tenant, "late", [], expires_at=now - 1)
    live = await catalog.create_key(kit.tenant, "live", [], expires_at=now + 60_000)
    assert await catalog.authenticate(late.plain) is None
    assert await catalog.authenticate(live.plain) is not None
    with psycopg.connect(kit.database.owner_dsn) as owner:
        row = owner.execute(
            "SELECT secret_hash FROM laneway.api_keys WHERE id = %s", (live.key.id,)
        ).fetchone()
    assert row is not None
    assert live.plain.rpartition("_")[2].encode() not in bytes(row[0])


async def test_sessions_are_listed_page_by_page(catalog: Catalog, kit: Kit) -> None:
    made = [
        await kit.sessions.create(
            kit.tenant,
            NewSession(
                name=f"n{index}",
                agent="helper" if index % 2 else None,
                metadata={"team": {"name": "red" if index < 3 else "blue"}, "n": index},
            ),
        )
        for index in range(7)
    ]
    # By instant, then by id: the machine's clock may step back between two of them.
    newest_first = [
        metadata.id for metadata in sorted(made, key=lambda m: (m.created_at, m.id), reverse=True)
    ]
    seen: list[str] = []
    cursor = None
    while page := await catalog.list_sessions(kit.tenant, cursor=cursor, limit=3):
        seen += [listing.id for listing in page]
        cursor = Cursor(page[-1].created_at, page[-1].id)
    assert seen == newest_first
    red = await catalog.list_sessions(kit.tenant, metadata={"team": {"name": "red"}})
    assert {listing.id for listing in red} == {metadata.id for metadata in made[:3]}
    assert len(await catalog.list_sessions(kit.tenant, agent="helper")) == 3
    assert await catalog.list_sessions(kit.new_tenant()) == []


async def test_a_listing_follows_the_session(catalog: Catalog, kit: Kit) -> None:
    owned = await kit.open_new(NewSession(metadata={"a": 1}, cwd="/work", name="first"))
    await owned.storage.commit([set_value(values.SESSION_NAME, "second")], BACKGROUND)
    await owned.storage.commit([insert_entry(Samples().entry(None))], BACKGROUND)
    assert await catalog.set_metadata(kit.tenant, owned.claimed.id, {"b": [1, "ü"]})
    listing = await catalog.get_session(kit.tenant, owned.claimed.id)
    assert listing is not None
    assert (listing.name, listing.cwd, listing.message_count) == ("second", "/work", 1)
    assert listing.metadata == {"b": [1, "ü"]}
    stranger = kit.new_tenant()
    assert await catalog.get_session(stranger, owned.claimed.id) is None
    assert not await catalog.set_metadata(stranger, owned.claimed.id, {})


async def test_a_claim_brings_the_sessions_metadata(kit: Kit) -> None:
    parent = kit.environment.ids.next()
    new = NewSession(metadata={"a": [None, {"ü": 1.5}]}, cwd="/w", parent_session_id=parent)
    made = await kit.sessions.create(kit.tenant, new)
    owned = await kit.sessions.open(kit.tenant, made.id)
    assert owned.claimed.metadata == made
    assert made.parent_session_id == parent


async def test_a_session_id_is_taken_once(kit: Kit) -> None:
    made = await kit.sessions.create(kit.tenant)
    for tenant in (kit.tenant, kit.new_tenant()):
        with pytest.raises(SessionExists):
            await kit.sessions.create(tenant, NewSession(id=made.id))


async def test_metadata_that_cannot_be_filtered_on_is_refused(catalog: Catalog, kit: Kit) -> None:
    for text in ("a\x00b", "\ud800"):
        with pytest.raises(InvalidArgument):
            await kit.sessions.create(kit.tenant, NewSession(metadata={"t": text}))
        with pytest.raises(InvalidArgument):
            await catalog.set_metadata(kit.tenant, kit.environment.ids.next(), {"t": text})
        with pytest.raises(InvalidArgument):
            await kit.sessions.create(kit.tenant, NewSession(name=text))
    with pytest.raises(InvalidArgument):
        await kit.sessions.create(kit.tenant, NewSession(id="x"))


async def test_a_deleted_session_is_gone_and_its_receipts_are_not(
    catalog: Catalog, kit: Kit
) -> None:
    owned = await kit.open_new()
    done, cut_short = (Op(kit.environment.ids.next(), lane) for lane in ("a", "b"))
    await owned.storage.commit(
        [insert_entry(Samples().entry(None)), *done.accept(), *cut_short.accept()], BACKGROUND
    )
    await owned.storage.commit(done.finish(), BACKGROUND)
    await owned.storage.close(BACKGROUND)
    await kit.sessions.delete(kit.tenant, owned.claimed.id)
    assert await catalog.get_session(kit.tenant, owned.claimed.id) is None
    assert owned.claimed.id not in kit.lease.held
    with psycopg.connect(kit.database.owner_dsn) as owner:
        for table in (
            "entries",
            "branch_entries",
            "branch_meta",
            "scalar_values",
            "open_operations",
        ):
            row = owner.execute(
                f"SELECT count(*) FROM laneway.{table} WHERE session_id = %s".encode(),
                (owned.claimed.id,),
            ).fetchone()
            assert row == (0,), table
    receipts = await catalog.list_operations(kit.tenant, session_id=owned.claimed.id)
    assert {(r.id, r.status, r.outcome) for r in receipts} == {
        (done.id, "done", "completed"),
        (cut_short.id, "done", "failed"),
    }


async def test_receipts_are_found_and_listed(catalog: Catalog, kit: Kit) -> None:
    owned = await kit.open_new()
    op = Op(kit.environment.ids.next())
    await owned.storage.commit(op.accept(), BACKGROUND)
    open_receipt = await find_receipt(kit.pool, kit.tenant, op.id)
    assert open_receipt is not None
    assert open_receipt.status == "open"
    assert await catalog.count_open_operations(kit.tenant) == 1
    await owned.storage.commit(op.finish(), BACKGROUND)
    receipt = await find_receipt(kit.pool, kit.tenant, op.id)
    assert receipt is not None
    assert (receipt.status, receipt.outcome) == ("done", "completed")
    assert await catalog.list_operations(kit.tenant, status="open") == []
    assert await catalog.list_operations(kit.tenant, lane="main", status="done") == [receipt]
    assert await catalog.count_open_operations(kit.tenant) == 0
    stranger = kit.new_tenant()
    assert await find_receipt(kit.pool, stranger, op.id) is None


def _answer(metadata: SessionMetadata) -> tuple[int, str]:
    return 201, metadata.id


async def test_one_key_makes_one_session(kit: Kit) -> None:
    key = IdempotencyKey("k1", "body")
    answers = await asyncio.gather(
        *(kit.sessions.create_once(kit.tenant, NewSession(), key, _answer) for _ in range(4))
    )
    made = [answer for answer in answers if isinstance(answer, SessionMetadata)]
    assert len(made) == 1
    assert [a for a in answers if not isinstance(a, SessionMetadata)] == [
        Replay(201, made[0].id)
    ] * 3
    other = IdempotencyKey("k1", "another body")
    assert await kit.sessions.create_once(kit.tenant, NewSession(), other, _answer) == KeyConflict()
    # Another tenant's key of the same name is another key.
    stranger = await kit.sessions.create_once(kit.new_tenant(), NewSession(), key, _answer)
    assert isinstance(stranger, SessionMetadata)


async def test_a_failed_creation_keeps_no_key(kit: Kit) -> None:
    taken = await kit.sessions.create(kit.tenant)
    key = IdempotencyKey("k2", "body")
    for _ in range(2):
        with pytest.raises(SessionExists):
            await kit.sessions.create_once(kit.tenant, NewSession(id=taken.id), key, _answer)
    made = await kit.sessions.create_once(kit.tenant, NewSession(), key, _answer)
    assert isinstance(made, SessionMetadata)


async def test_an_expired_key_may_be_used_again(kit: Kit) -> None:
    key = IdempotencyKey("k3", "body", keep_ms=-1)
    first = await kit.sessions.create_once(kit.tenant, NewSession(), key, _answer)
    second = await kit.sessions.create_once(kit.tenant, NewSession(), key, _answer)
    assert isinstance(first, SessionMetadata)
    assert isinstance(second, SessionMetadata)
    assert first.id != second.id


async def test_a_snapshot_sees_one_instant(kit: Kit) -> None:
    counter = value(int, "app.counter")
    owned = await kit.open_new()
    await owned.storage.commit([set_value(counter, 1)], BACKGROUND)
    async with kit.sessions.snapshot(kit.tenant, owned.claimed.id) as reader:
        first = await reader.get_value(counter, BACKGROUND)
        await owned.storage.commit([set_value(counter, 2)], BACKGROUND)
        second = await reader.get_value(counter, BACKGROUND)
        with pytest.raises(ReadOnlySession):
            await reader.commit([set_value(counter, 3)], BACKGROUND)
    assert first == second
    newest = await kit.sessions.reader(kit.tenant, owned.claimed.id).get_value(counter, BACKGROUND)
    assert newest is not None
    assert newest.value == 2


async def test_nobody_reads_another_tenants_session(kit: Kit) -> None:
    owned = await kit.open_new()
    entry = Samples().entry(None)
    await owned.storage.commit([insert_entry(entry)], BACKGROUND)
    stranger = kit.sessions.reader(kit.new_tenant(), owned.claimed.id)
    assert await stranger.get_entries([entry.id], BACKGROUND) == {}
    assert await stranger.get_value(values.lane_leaf("main"), BACKGROUND) is None
    assert (await stranger.get_stats(BACKGROUND)).message_count == 0
    with psycopg.connect(kit.database.app_dsn, autocommit=True) as app:
        # Without a tenant, and after a transaction that named one, there is nothing to see.
        for _ in range(2):
            row = app.execute("SELECT count(*) FROM laneway.entries").fetchone()
            assert row == (0,)
            with app.transaction():
                app.execute("SELECT set_config('laneway.tenant', %s, true)", (kit.tenant,))
                row = app.execute("SELECT count(*) FROM laneway.entries").fetchone()
                assert row == (1,)
        with app.transaction():
            app.execute("SELECT set_config('laneway.tenant', %s, true)", (kit.new_tenant(),))
            with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction():
                app.execute(
                    "INSERT INTO laneway.list_values VALUES (%s, 'n', 'k', 1, %s, '1')",
                    (owned.claimed.id, kit.tenant),
                )
