"""Commits: fenced, shared without sharing faults, and never in doubt while the database can be asked."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.errors import InvalidArgument, LeaseLost, StorageClosed, StorageCorrupt, StorageError
from harness.storage.address import list_of, value
from harness.storage.protocol import BranchScan, EntryScan, ListRead
from harness.storage.writes import append_list, insert_entry, insert_usage, set_value
from harness.testing.conformance.samples import Samples
from harness.usage import EMPTY_STATS
from storage_pg.documents import Document, Identity, Known, draft
from storage_pg.due import PollSettings
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit

COUNTER = value(int, "app.counter")
LOG = list_of(Any, "app.log")


async def test_a_stale_fence_writes_nothing(kit: Kit) -> None:
    owned = await kit.open_new()
    await owned.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    # A zombie: it does not know that its lease fell and another host claimed.
    other = kit.new_lease()
    await other.start()
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "UPDATE laneway.sessions SET fence = fence + 1 WHERE id = %s", (owned.claimed.id,)
        )
    with pytest.raises(LeaseLost):
        await owned.storage.commit([set_value(COUNTER, 2)], BACKGROUND)
    with pytest.raises(LeaseLost):
        await owned.storage.commit([set_value(COUNTER, 3)], BACKGROUND)
    stored = await kit.sessions.reader(kit.tenant, owned.claimed.id).get_value(COUNTER, BACKGROUND)
    assert stored is not None
    assert stored.value == 1
    await other.close()


async def test_the_tenant_is_part_of_the_fence(kit: Kit) -> None:
    owned = await kit.open_new()
    stranger = Identity.of(kit.new_tenant(), owned.claimed.id, owned.claimed.fence)
    known = Known(EMPTY_STATS, {}, owned.claimed.next_seq)
    document = draft([set_value(COUNTER, 9)], stranger, known, 1, PollSettings())
    kit.writer.submit(document)
    await document.finished()
    assert document.outcome == (None,)
    assert await owned.storage.get_value(COUNTER, BACKGROUND) is None


async def test_sessions_share_calls_and_keep_their_order(kit: Kit) -> None:
    storages = [await kit.new_storage() for _ in range(12)]
    documents_before, calls_before = kit.writer.counts

    async def work(storage: PostgresStorage) -> None:
        for number in range(20):
            await storage.commit([set_value(COUNTER, number), append_list(LOG, number)], BACKGROUND)

    await asyncio.gather(*(work(storage) for storage in storages))
    documents, calls = kit.writer.counts
    assert documents - documents_before == 240
    assert calls - calls_before < 240
    for storage in storages:
        page = await storage.read_list(LOG, ListRead(), BACKGROUND)
        assert [element.value for element in page] == list(range(20))


async def test_one_sessions_fault_is_not_the_others(kit: Kit) -> None:
    storages = [await kit.new_storage() for _ in range(8)]
    samples = [Samples(seed) for seed in range(8)]
    first = samples[3].entry(None)
    await storages[3].commit([insert_entry(first)], BACKGROUND)
    blocker = await kit.new_storage()

    async def work(index: int) -> None:
        entry = first if index == 3 else samples[index].entry(None)
        await storages[index].commit([insert_entry(entry)], BACKGROUND)

    # The first goes alone; while it is under way the others queue up and go together.
    results = await asyncio.gather(
        blocker.commit([set_value(COUNTER, 1)], BACKGROUND),
        *(work(index) for index in range(8)),
        return_exceptions=True,
    )
    failed = [index for index, result in enumerate(results[1:]) if result is not None]
    assert failed == [3]
    assert isinstance(results[4], StorageCorrupt)
    for index, storage in enumerate(storages):
        assert len(await storage.scan_entries(EntryScan(), BACKGROUND)) == 1, index
    # Corruption was refused, not half applied: the session goes on.
    await storages[3].commit([insert_entry(samples[3].entry(first.id))], BACKGROUND)


async def test_a_fenced_out_session_does_not_disturb_its_batch(kit: Kit) -> None:
    owned = [await kit.open_new() for _ in range(6)]
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "UPDATE laneway.sessions SET fence = fence + 1 WHERE id = %s", (owned[2].claimed.id,)
        )
    results = await asyncio.gather(
        *(one.storage.commit([set_value(COUNTER, 1)], BACKGROUND) for one in owned),
        return_exceptions=True,
    )
    assert [isinstance(result, LeaseLost) for result in results] == [i == 2 for i in range(6)]


async def test_a_lost_connection_loses_no_commit(kit: Kit) -> None:
    storage = await kit.new_storage()
    stop = asyncio.Event()

    async def cut() -> None:
        with psycopg.connect(kit.database.admin_dsn, autocommit=True) as admin:
            while not stop.is_set():
                admin.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE application_name = 'laneway-commit' AND datname = current_database()"
                )
                await asyncio.sleep(0.02)

    cutting = asyncio.create_task(cut())
    for number in range(150):
        await storage.commit([set_value(COUNTER, number), append_list(LOG, number)], BACKGROUND)
    stop.set()
    await cutting
    page = await storage.read_list(LOG, ListRead(), BACKGROUND)
    # Each exactly once: a commit that was applied is not sent again.
    assert [element.value for element in page] == list(range(150))


async def test_a_cancelled_caller_hears_of_it_when_the_commit_is_done(kit: Kit) -> None:
    storage = await kit.new_storage()
    for number in range(10):
        task = asyncio.create_task(storage.commit([set_value(COUNTER, number)], BACKGROUND))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        stored = await storage.get_value(COUNTER, BACKGROUND)
        assert stored is not None
        assert stored.value == number
        # The storage knows of it: the next commit's numbers go on from there.
        result = await storage.commit([append_list(LOG, number)], BACKGROUND)
        assert result.first_seq == stored.seq + 1


async def test_losing_the_lease_ends_a_storage_at_once(kit: Kit) -> None:
    storage = await kit.new_storage()
    await kit.lose_lease()
    with pytest.raises(LeaseLost):
        await storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    await storage.close(BACKGROUND)
    with pytest.raises(StorageClosed):
        await storage.commit([set_value(COUNTER, 1)], BACKGROUND)


async def test_names_that_text_cannot_hold_are_refused_before_anything_is_sent(kit: Kit) -> None:
    storage, samples = await kit.new_storage(), Samples(2)
    for write in (
        insert_entry(samples.entry(None, samples.custom("a\x00b"))),
        insert_entry(samples.entry(None, samples.custom("\udc00"))),
    ):
        with pytest.raises(InvalidArgument):
            await storage.commit([write], BACKGROUND)
    await storage.commit([set_value(COUNTER, 1)], BACKGROUND)


async def test_a_large_commit_passes_the_sockets_buffer(kit: Kit) -> None:
    storage = await kit.new_storage()
    text = "\x00é\ud800" * 400_000
    await storage.commit([append_list(LOG, [text, number]) for number in range(4)], BACKGROUND)
    page = await storage.read_list(LOG, ListRead(), BACKGROUND)
    assert [element.value for element in page] == [[text, number] for number in range(4)]


async def test_totals_are_the_ledgers_even_after_a_refused_commit(kit: Kit) -> None:
    storage, samples = await kit.new_storage(), Samples(5)
    rows = [samples.row() for _ in range(7)]
    for row in rows:
        await storage.commit([insert_usage(row), insert_entry(samples.entry(None))], BACKGROUND)
        with pytest.raises(StorageCorrupt):
            await storage.commit([insert_usage(samples.row()), insert_usage(row)], BACKGROUND)
    stats = await storage.get_stats(BACKGROUND)
    total = EMPTY_STATS.usage
    for row in rows:
        total = type(total)(
            input=total.input + row.usage.input,
            output=total.output + row.usage.output,
            cache_read=total.cache_read + row.usage.cache_read,
            cache_write=total.cache_write + row.usage.cache_write,
            total_tokens=total.total_tokens + row.usage.total_tokens,
            cost=stats.usage.cost,
        )
    assert stats.usage == total
    await storage.close(BACKGROUND)


async def test_a_document_tells_its_outcome_once(kit: Kit) -> None:
    known = Known(EMPTY_STATS, {}, 1)
    document = Document(Identity.of(kit.tenant, kit.tenant, 1), known, 1, 1)
    document.conclude((7,))
    document.conclude(StorageError("too late"))
    await document.finished()
    assert document.outcome == (7,)


async def test_reads_go_on_without_a_scan_of_whole_tables(fresh_kit: Kit) -> None:
    kit, samples = fresh_kit, Samples(11)
    storage = await kit.new_storage()
    tree = samples.tree(600, compactions=0.05, jumps=0.1)
    for start in range(0, len(tree), 50):
        await storage.commit(
            [insert_entry(entry) for entry in tree[start : start + 50]], BACKGROUND
        )
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute("ANALYZE")
    before, index_before = await _scans(kit)
    leaf = tree[-1].id
    for query in (
        BranchScan(start=leaf, stop_at_type="compaction"),
        BranchScan(start=leaf),
        BranchScan(start=leaf, order="oldestFirst", stop_at_id=tree[0].id),
        BranchScan(start=leaf, type="message", limit=5),
    ):
        await storage.scan_branch(query, BACKGROUND)
        await storage.scan_branch_structure(query, BACKGROUND)
    await storage.get_entries([entry.id for entry in tree[:100]], BACKGROUND)
    await storage.scan_entries(EntryScan(from_seq=100, limit=20), BACKGROUND)
    await storage.read_list(LOG, ListRead(), BACKGROUND)
    await storage.scan_values(value(Any, "app.values", "prefix"), BACKGROUND)
    await storage.commit([insert_entry(samples.entry(leaf))], BACKGROUND)
    after, index_after = await _scans(kit)
    assert after == before
    assert index_after > index_before  # the counts are real


async def _scans(kit: Kit) -> tuple[dict[str, int], int]:
    await kit.flush_counts()
    with psycopg.connect(kit.database.admin_dsn, autocommit=True) as admin:
        rows = admin.execute(
            "SELECT relname, seq_scan, idx_scan FROM pg_stat_user_tables "
            "WHERE schemaname = 'laneway' "
            "AND relname ~ '^(entries|branch|usage|scalar|list)'"
        ).fetchall()
    return {name: sequential for name, sequential, _ in rows}, sum(row[2] for row in rows)
