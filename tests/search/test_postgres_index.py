"""The Postgres index: tenants apart, gone with the session, swept for all tenants, through its index."""

from __future__ import annotations

from collections.abc import AsyncIterator

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.search.service import CursorMoved, SearchBatch, StoreIdentity
from harness.search.sync import sync_all
from storage_pg.search import PostgresSearch
from storage_pg.search_source import PostgresSource, sweep
from tests.postgres import Database
from tests.search.support import found, say, sessions_for
from tests.storage_pg.kit import Kit


@pytest.fixture
async def own(fresh_database: Database) -> AsyncIterator[Kit]:
    """A database of the test's own: the sweep looks at all tenants."""
    made = await Kit.open(fresh_database)
    yield made
    await made.close()


async def test_tenants_are_apart(own: Kit) -> None:
    other = own.new_tenant()
    session = (await own.open_new()).session(own.environment)
    await say(session, "auth secret")
    mine, theirs = (PostgresSearch(own.pool, tenant) for tenant in (own.tenant, other))
    await sync_all(PostgresSource(own.pool, own.tenant), mine, BACKGROUND)
    assert len(await sessions_for(mine, "auth")) == 1
    assert await sessions_for(theirs, "auth") == []
    assert await theirs.session_ids(None, 10, BACKGROUND) == []
    assert await theirs.positions([session.id], BACKGROUND) == {}
    # Nor can another tenant fill in, or take away, what is not its own.
    store = StoreIdentity(session.metadata.created_at, 0)
    batch = SearchBatch(session.id, store, None, 1, 1, (), (), None)
    with pytest.raises(CursorMoved):
        await theirs.index_batch(batch, BACKGROUND)
    await theirs.remove(session.id, BACKGROUND)
    await sync_all(PostgresSource(own.pool, other), theirs, BACKGROUND)
    assert len(await sessions_for(mine, "auth")) == 1
    with psycopg.connect(own.database.app_dsn) as app:
        for table in ("search_entries", "search_sessions"):
            assert app.execute(f"SELECT count(*) FROM laneway.{table}").fetchone() == (0,)  # pyright: ignore[reportArgumentType]  # two known names
    await session.close(BACKGROUND)


async def test_a_deleted_session_is_not_found_from_then_on(own: Kit) -> None:
    session = (await own.open_new()).session(own.environment)
    await say(session, "auth secret")
    index = PostgresSearch(own.pool, own.tenant)
    await sync_all(PostgresSource(own.pool, own.tenant), index, BACKGROUND)
    held = (await index.positions([session.id], BACKGROUND))[session.id]
    await session.close(BACKGROUND)
    await own.sessions.delete(own.tenant, session.id)
    assert await sessions_for(index, "auth") == []
    # An indexer that was about to write comes too late.
    late = SearchBatch(session.id, held.store, None, 1, 9, (), (), None)
    with pytest.raises(CursorMoved):
        await index.index_batch(late, BACKGROUND)


async def test_a_rewritten_session_is_not_found_until_it_is_indexed_again(own: Kit) -> None:
    session = (await own.open_new()).session(own.environment)
    await say(session, "auth secret")
    index = PostgresSearch(own.pool, own.tenant)
    await sync_all(PostgresSource(own.pool, own.tenant), index, BACKGROUND)
    with psycopg.connect(own.database.owner_dsn) as owner:
        owner.execute("UPDATE laneway.sessions SET store_generation = store_generation + 1")
    assert await sessions_for(index, "auth") == []
    await sync_all(PostgresSource(own.pool, own.tenant), index, BACKGROUND)
    assert len(await sessions_for(index, "auth")) == 1
    await session.close(BACKGROUND)


async def test_the_sweep_serves_all_tenants_and_only_what_changed(own: Kit) -> None:
    tenants = [own.tenant, own.new_tenant()]
    sessions = []
    for tenant in tenants * 2:
        made = await own.sessions.create(tenant)
        sessions.append((await own.sessions.open(tenant, made.id)).session(own.environment))
    for session in sessions:
        await say(session, "auth")
    report = await sweep(own.pool, BACKGROUND)
    assert (report.sessions, report.entries, report.failures) == (4, 4, {})
    report = await sweep(own.pool, BACKGROUND)
    assert report.sessions == 0
    await say(sessions[2], "auth again")
    report = await sweep(own.pool, BACKGROUND)
    assert (report.sessions, report.entries) == (1, 1)
    for tenant in tenants:
        hits = await sessions_for(PostgresSearch(own.pool, tenant), "auth")
        assert len(hits) == 2
    # Other fields are other labels, for every session.
    report = await sweep(own.pool, BACKGROUND, ("project",), at_most=3)
    assert (report.sessions, report.entries) == (3, 0)
    report = await sweep(own.pool, BACKGROUND, ("project",))
    assert (report.sessions, report.entries) == (1, 0)
    for session in sessions:
        await session.close(BACKGROUND)


async def test_a_search_reads_no_other_tenants_entries(own: Kit) -> None:
    session = (await own.open_new()).session(own.environment)
    entries = await say(session, *(f"auth {n}" for n in range(30)))
    await sync_all(
        PostgresSource(own.pool, own.tenant), PostgresSearch(own.pool, own.tenant), BACKGROUND
    )
    with psycopg.connect(own.database.owner_dsn) as owner:
        owner.execute(
            "INSERT INTO laneway.search_entries "
            "SELECT session_id, gen_random_uuid(), gen_random_uuid(), 1, 'message', 'auth', "
            "'auth ''@nobody'''::tsvector FROM laneway.search_entries, generate_series(1, 1000)"
        )
        owner.execute("ANALYZE laneway.search_entries")
        plan = owner.execute(
            "EXPLAIN SELECT entry_id FROM laneway.search_entries WHERE terms @@ "
            f"'auth & ''@{own.tenant}'''::tsquery AND tenant_id = %s",  # pyright: ignore[reportArgumentType]  # an id of ours
            (own.tenant,),
        ).fetchall()
    assert any("Bitmap Index Scan on search_entries_default" in row[0] for row in plan), plan
    assert await found(PostgresSearch(own.pool, own.tenant), "auth") == set(entries)
    await session.close(BACKGROUND)
