"""Whole sessions in Postgres: forked while owned, rewritten by their owner, restored with what is open."""

from __future__ import annotations

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.entries import Entry
from harness.environment import Environment
from harness.errors import InvalidArgument, LeaseLost, SessionInUse, SessionNotFound
from harness.operation import values
from harness.result import Ok
from harness.runtime.requests import PromptRequest
from harness.session.fork import BranchFork, TreeFork
from harness.session.repo_memory import MemorySessions
from harness.session.rewrite import Keep
from harness.session.transfer import ImportOptions, copy_session
from harness.storage.protocol import BranchScan, EntryScan, UsageScan
from harness.storage.records import Record
from harness.storage.snapshot import Snapshot
from harness.storage.writes import insert_entry
from harness.testing.conformance.samples import Samples
from harness.usage import EMPTY_STATS
from storage_pg.copies import PostgresCopies
from tests.session.ends import EmbeddedEnd, fill
from tests.session.test_transfer import content, harness_of
from tests.storage_pg.kit import Kit


class _Drop(Keep):
    """Leaves out the entries of one type, and what it cost."""

    def __init__(self, type_: type[Entry]) -> None:
        self._type = type_

    def entry(self, entry: Entry) -> Entry | None:
        return None if isinstance(entry, self._type) else entry


def copies_of(kit: Kit, tenant: str | None = None) -> PostgresCopies:
    return PostgresCopies(kit.database.app_dsn, tenant or kit.tenant, kit.environment, kit.sessions)


async def records(copies: PostgresCopies, session_id: str) -> list[Record]:
    async with copies.snapshot(session_id, BACKGROUND) as (_, snapshot):
        return list(snapshot.records())


async def test_a_session_is_forked_while_it_is_owned(kit: Kit) -> None:
    session = (await kit.open_new()).session(kit.environment)
    await fill(session)
    copies = copies_of(kit)
    whole = await copies.fork(session.id, TreeFork(), BACKGROUND)
    leaf = await session.storage.get_value(values.lane_leaf("main"), BACKGROUND)
    assert leaf is not None
    assert leaf.value is not None
    path = await copies.fork(session.id, BranchFork(position="before"), BACKGROUND)
    forked = (await kit.sessions.open(kit.tenant, whole.id)).session(kit.environment)
    assert forked.metadata.parent_session_id == session.id
    everything = await session.storage.scan_entries(EntryScan(), BACKGROUND)
    assert await forked.storage.scan_entries(EntryScan(), BACKGROUND) == everything
    assert await forked.storage.scan_usage(UsageScan(), BACKGROUND) == []
    stats = await forked.storage.get_stats(BACKGROUND)
    assert stats.usage == EMPTY_STATS.usage
    assert stats.message_count == (await session.storage.get_stats(BACKGROUND)).message_count
    assert await forked.lane_names(BACKGROUND) == ["main", "other"]
    branch = (await kit.sessions.open(kit.tenant, path.id)).session(kit.environment)
    scan = BranchScan(start=leaf.value, order="oldestFirst")
    expected = (await session.storage.scan_branch(scan, BACKGROUND))[:-1]
    assert await branch.storage.scan_entries(EntryScan(), BACKGROUND) == expected
    assert await branch.lane_names(BACKGROUND) == ["main"]
    with pytest.raises(InvalidArgument):
        await copies.fork(session.id, BranchFork(entry_id="nowhere"), BACKGROUND)
    with pytest.raises(InvalidArgument, match="exists"):
        await copies.fork(session.id, TreeFork(id=whole.id), BACKGROUND)
    for opened in (session, forked, branch):
        await opened.close(BACKGROUND)


async def test_a_rewrite_equals_that_of_another_backend(kit: Kit) -> None:
    session = (await kit.open_new()).session(kit.environment)
    await fill(session)
    copies = copies_of(kit)
    memory = EmbeddedEnd(MemorySessions(Environment.system()))
    await copy_session(copies, session.id, memory.target, ImportOptions(), BACKGROUND)
    original = await memory.repository.get(session.id, BACKGROUND)
    with pytest.raises(SessionInUse):
        await copies.rewrite(session.id, Keep(), BACKGROUND)
    dropped = type((await session.storage.scan_entries(EntryScan(), BACKGROUND))[2])
    await session.close(BACKGROUND)
    rewritten = await copies.rewrite(session.id, _Drop(dropped), BACKGROUND)
    assert rewritten.store_generation == 1
    await memory.repository.rewrite(original, _Drop(dropped), BACKGROUND)
    here = (await kit.sessions.open(kit.tenant, session.id)).session(kit.environment)
    there = await memory.open(session.id)
    assert here.metadata.store_generation == 1
    assert await content(here) == await content(there)
    assert len((await content(here))["entries"]) == 4
    await here.close(BACKGROUND)


async def test_a_rewrite_that_fails_changes_nothing(kit: Kit) -> None:
    harness = await harness_of((await kit.open_new()).session(kit.environment))
    await harness.accept(PromptRequest(prompt="go"), BACKGROUND)
    session_id = harness.session.id
    await harness.close(BACKGROUND)
    copies = copies_of(kit)
    before = await records(copies, session_id)
    with pytest.raises(InvalidArgument, match="open operation"):
        await copies.rewrite(session_id, Keep(), BACKGROUND)
    assert await records(copies, session_id) == before
    # It is given back.
    await (await kit.sessions.open(kit.tenant, session_id)).storage.close(BACKGROUND)


async def test_a_rewrite_without_the_lease_changes_nothing(kit: Kit) -> None:
    session = (await kit.open_new()).session(kit.environment)
    await fill(session)
    await session.close(BACKGROUND)
    copies = copies_of(kit)
    before = await records(copies, session.id)

    class Robbed(Keep):
        """While this runs, the session gets another owner."""

        def entry(self, entry: Entry) -> Entry | None:
            with psycopg.connect(kit.database.owner_dsn) as owner:
                owner.execute(
                    "UPDATE laneway.sessions SET fence = fence + 1 WHERE id = %s", (session.id,)
                )
            return None

    with pytest.raises(LeaseLost):
        await copies.rewrite(session.id, Robbed(), BACKGROUND)
    assert await records(copies, session.id) == before


async def test_what_is_open_is_driven_where_it_arrives(kit: Kit) -> None:
    memory = EmbeddedEnd(MemorySessions(Environment.system()))
    harness = await harness_of(await memory.create())
    accepted = await harness.accept(PromptRequest(prompt="go"), BACKGROUND)
    assert isinstance(accepted, Ok)
    session_id = harness.session.id
    await harness.close(BACKGROUND)
    copies = copies_of(kit)
    keep = ImportOptions(operations="keep")
    await copy_session(memory.target, session_id, copies, keep, BACKGROUND)
    with psycopg.connect(kit.database.owner_dsn) as owner:
        assert owner.execute(
            "SELECT o.lane, o.kind, r.status, o.due_at <= %s FROM laneway.open_operations AS o "
            "JOIN laneway.operations AS r ON r.id = o.operation_id WHERE o.session_id = %s",
            (kit.environment.clock.now_ms(), session_id),
        ).fetchone() == ("main", "run", "open", True)
        harness = await harness_of(
            (await kit.sessions.open(kit.tenant, session_id)).session(kit.environment)
        )
        assert isinstance(await harness.resume(BACKGROUND), Ok)
        await harness.close(BACKGROUND)
        assert owner.execute(
            "SELECT status, outcome FROM laneway.operations WHERE id = %s",
            (accepted.value.operation_id,),
        ).fetchone() == ("done", "completed")


async def test_another_tenants_session_is_not_found(kit: Kit) -> None:
    made = await kit.sessions.create(kit.tenant)
    other = copies_of(kit, kit.new_tenant())
    for session_id in (made.id, "no-uuid", kit.environment.ids.next()):
        with pytest.raises(SessionNotFound):
            async with other.snapshot(session_id, BACKGROUND):
                pass
        with pytest.raises(SessionNotFound):
            await other.fork(session_id, TreeFork(), BACKGROUND)
    with pytest.raises(SessionNotFound):
        await other.rewrite(made.id, Keep(), BACKGROUND)
    with pytest.raises(SessionInUse):
        await other.delete(made, BACKGROUND)
    assert len(await records(copies_of(kit), made.id)) == 2


async def test_only_a_session_that_nobody_claimed_is_taken_back(kit: Kit) -> None:
    copies = copies_of(kit)
    made, claimed = [await kit.sessions.create(kit.tenant) for _ in range(2)]
    await (await kit.sessions.open(kit.tenant, claimed.id)).storage.close(BACKGROUND)
    await copies.delete(made, BACKGROUND)
    with pytest.raises(SessionInUse):
        await copies.delete(claimed, BACKGROUND)
    with pytest.raises(SessionNotFound):
        await records(copies, made.id)


async def test_ids_that_postgres_cannot_keep_are_refused(kit: Kit) -> None:
    memory = EmbeddedEnd(MemorySessions(Environment.system()))
    session = await memory.create()
    await fill(session)
    copies = copies_of(kit)
    for bad in ("plain-name", session.id.upper(), "{" + session.id + "}"):
        with pytest.raises(InvalidArgument, match="UUID"):
            await copy_session(memory.target, session.id, copies, ImportOptions(id=bad), BACKGROUND)
    await session.close(BACKGROUND)


async def test_a_snapshot_is_one_instant_however_long_it_is_read(kit: Kit) -> None:
    session = (await kit.open_new()).session(kit.environment)
    await fill(session)
    copies = copies_of(kit)
    async with copies.snapshot(session.id, BACKGROUND) as (_, snapshot):
        found: Snapshot = snapshot
        entries = found.entries()
        first = next(entries)
        await session.storage.commit(
            [insert_entry(entry) for entry in Samples(9).chain(None, 5)], BACKGROUND
        )
        rest = list(entries)
        assert len([first, *rest]) == 5
        assert len(list(found.path(rest[-1].id))) == 4
        assert not found.has_entry("no-uuid")
        assert found.has_entry(first.id)
    assert len(await session.storage.scan_entries(EntryScan(), BACKGROUND)) == 10
    await session.close(BACKGROUND)
