"""Conformance: transactions are all-or-none, ordered, stamped and serialized (§1.4, §9.1 1-3, 11)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from harness.context import BACKGROUND
from harness.entries import NewEntry
from harness.errors import StorageClosed, StorageCorrupt
from harness.storage.address import list_of, value
from harness.storage.protocol import BranchScan, EntryScan, Storage, UsageScan
from harness.storage.writes import (
    InsertEntry,
    Write,
    append_list,
    delete_list,
    delete_value,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.testing.conformance.backend import StorageBackend, expect, require
from harness.testing.conformance.checking import Checked
from harness.testing.conformance.samples import Samples
from harness.usage import EMPTY_STATS, NewUsageRow

NOTE = value(Any, "app.note", "k")
LOG = list_of(Any, "app.log", "k")


class TransactionConformance:
    """What a commit does, and what a refused commit leaves behind."""

    async def test_a_fresh_session_is_empty(self, backend: StorageBackend) -> None:
        storage = await backend.create()
        assert await storage.scan_entries(EntryScan(), BACKGROUND) == []
        assert await storage.scan_usage(UsageScan(), BACKGROUND) == []
        assert await storage.get_stats(BACKGROUND) == EMPTY_STATS
        assert await storage.get_value(NOTE, BACKGROUND) is None
        assert await storage.read_list(LOG, None, BACKGROUND) == []

    async def test_every_kind_of_write_in_one_transaction(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        first = samples.entry(None)
        second = samples.entry(first.id, samples.assistant())
        await checked.commit(
            insert_entry(first),
            set_value(NOTE, {"a": 1}),
            append_list(LOG, "one"),
            insert_entry(second),
            insert_usage(samples.row(entry_id=second.id)),
            append_list(LOG, "two"),
            delete_value(value(Any, "app.absent")),
            delete_list(list_of(Any, "app.absent")),
        )
        await checked.everything()
        await checked.commit(delete_value(NOTE), delete_list(LOG))
        await checked.everything()
        assert await checked.storage.get_value(NOTE, BACKGROUND) is None
        assert await checked.storage.read_list(LOG, None, BACKGROUND) == []

    async def test_writes_apply_in_order(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        await checked.commit(append_list(LOG, "old"), set_value(NOTE, 1))
        result = await checked.commit(
            set_value(NOTE, 2),
            delete_value(NOTE),
            set_value(NOTE, 3),
            delete_list(LOG),
            append_list(LOG, "new"),
            append_list(LOG, "newer"),
        )
        stored = await checked.storage.get_value(NOTE, BACKGROUND)
        assert stored is not None
        assert (stored.value, stored.seq) == (3, result.seqs[2])
        found = await checked.storage.read_list(LOG, None, BACKGROUND)
        assert [(e.value, e.seq) for e in found] == [
            ("new", result.seqs[4]),
            ("newer", result.seqs[5]),
        ]
        await checked.commit(
            append_list(LOG, "gone"), delete_list(LOG), set_value(NOTE, 4), delete_value(NOTE)
        )
        await checked.everything()
        assert await checked.storage.read_list(LOG, None, BACKGROUND) == []

    async def test_entries_of_one_transaction_share_its_time(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        result = await checked.commit(*(insert_entry(e) for e in samples.chain(None, 3)))
        stored = await checked.storage.scan_entries(EntryScan(), BACKGROUND)
        assert [entry.timestamp for entry in stored] == [result.timestamp] * 3
        assert tuple(entry.seq for entry in stored) == result.seqs

    async def test_an_empty_transaction_changes_nothing(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        await checked.commit(insert_entry(samples.entry(None)))
        assert (await checked.commit()).seqs == ()
        await checked.everything()

    async def test_ids_are_unique_across_entries_and_usage(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        entry, row = samples.entry(None), samples.row()
        await checked.commit(insert_entry(entry), insert_usage(row))
        fresh, fresh_row = samples.entry(entry.id), samples.row()
        row_as_entry = NewUsageRow(id=entry.id, usage=row.usage)
        clashes: list[list[Write]] = [
            [insert_entry(entry)],
            [insert_usage(row)],
            [insert_usage(row_as_entry)],
            [InsertEntry(_with_id(samples, row.id))],
            [insert_entry(fresh), insert_entry(fresh)],
            [insert_usage(fresh_row), insert_usage(fresh_row)],
            [insert_entry(fresh), insert_usage(NewUsageRow(id=fresh.id, usage=row.usage))],
            [insert_usage(fresh_row), InsertEntry(_with_id(samples, fresh_row.id))],
        ]
        for writes in clashes:
            await _refused(checked, writes, StorageCorrupt)
        await checked.commit(insert_entry(fresh), insert_usage(fresh_row))
        await checked.everything()

    async def test_a_missing_parent_is_corruption(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        row, orphan = samples.row(), samples.entry(samples.new_id())
        await checked.commit(insert_usage(row))
        child = samples.entry(orphan.id)
        await _refused(checked, [insert_entry(orphan)], StorageCorrupt)
        await _refused(checked, [insert_entry(samples.entry(row.id))], StorageCorrupt)
        root = samples.entry(None)
        below = samples.entry(root.id)
        await _refused(checked, [insert_entry(below), insert_entry(root)], StorageCorrupt)
        await _refused(checked, [insert_entry(child)], StorageCorrupt)
        new_row = samples.row()
        await _refused(
            checked,
            [insert_usage(new_row), insert_entry(samples.entry(new_row.id))],
            StorageCorrupt,
        )
        await checked.commit(insert_entry(root), insert_entry(below))
        await checked.everything()

    async def test_a_write_of_unknown_kind_changes_nothing(self, backend: StorageBackend) -> None:
        checked = Checked(await backend.create())
        # The cast stands for a caller that ignores the types.
        unknown = cast("Write", {"kind": "value", "op": "increment"})
        await _refused(checked, [set_value(NOTE, 1), unknown], Exception)

    async def test_a_value_that_json_cannot_hold_changes_nothing(
        self, backend: StorageBackend
    ) -> None:
        require(backend, "durable")
        checked = Checked(await backend.create())
        await _refused(checked, [append_list(LOG, 1), set_value(NOTE, object())], Exception)
        await checked.commit(set_value(NOTE, 1))
        await checked.everything()

    async def test_concurrent_commits_are_serialized(self, backend: StorageBackend) -> None:
        samples = Samples()
        checked = Checked(storage := await backend.create())
        batches: list[list[Write]] = []
        for number in range(40):
            batch: list[Write] = [insert_entry(e) for e in samples.chain(None, 2)]
            batch += [append_list(LOG, number), append_list(LOG, -number)]
            batch += [insert_usage(samples.row()), set_value(NOTE, number)]
            batches.append(batch)
        results = await asyncio.gather(*(storage.commit(batch, BACKGROUND) for batch in batches))
        by_seq = sorted(zip(results, batches, strict=True), key=lambda pair: pair[0].first_seq)
        last = 0
        for result, batch in by_seq:
            assert result.first_seq > last, "transactions must not overlap"
            last = result.seqs[-1]
            checked.model.apply(batch, result)
        await checked.everything()

    async def test_reads_during_commits_see_whole_transactions(
        self, backend: StorageBackend
    ) -> None:
        samples, storage = Samples(), await backend.create()

        async def write() -> None:
            for number in range(30):
                writes = [
                    insert_usage(samples.row()),
                    append_list(LOG, number),
                    append_list(LOG, number),
                ]
                await storage.commit(writes, BACKGROUND)

        writer = asyncio.create_task(write())
        while not writer.done():
            elements = await storage.read_list(LOG, None, BACKGROUND)
            assert len(elements) % 2 == 0
            await asyncio.sleep(0)
        await writer
        assert len(await storage.scan_usage(UsageScan(), BACKGROUND)) == 30

    async def test_a_cancelled_caller_leaves_a_whole_transaction_or_none(
        self, backend: StorageBackend
    ) -> None:
        samples, storage = Samples(), await backend.create()
        for number in range(10):
            writes = [
                append_list(LOG, number),
                insert_usage(samples.row()),
                append_list(LOG, number),
            ]
            task = asyncio.create_task(storage.commit(writes, BACKGROUND))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            # The next commit queues behind whatever the cancelled one still does.
            await storage.commit([set_value(NOTE, number)], BACKGROUND)
            elements = await storage.read_list(LOG, None, BACKGROUND)
            rows = await storage.scan_usage(UsageScan(), BACKGROUND)
            assert len(elements) == 2 * len(rows)

    async def test_closed_storage_refuses_everything(self, backend: StorageBackend) -> None:
        samples, storage = Samples(), await backend.create()
        entry = samples.entry(None)
        pending = [
            asyncio.create_task(storage.commit([insert_entry(entry)], BACKGROUND)),
            asyncio.create_task(storage.commit([append_list(LOG, 1)], BACKGROUND)),
        ]
        await asyncio.sleep(0)
        await storage.close(BACKGROUND)
        await asyncio.gather(*pending)
        await storage.close(BACKGROUND)
        await _all_calls_refused(storage, entry.id)
        reopened = await backend.reopen()
        assert len(await reopened.scan_entries(EntryScan(), BACKGROUND)) == 1
        assert len(await reopened.read_list(LOG, None, BACKGROUND)) == 1


async def _refused(checked: Checked, writes: list[Write], error: type[Exception]) -> None:
    with expect(error):
        await checked.storage.commit(writes, BACKGROUND)
    await checked.everything()
    assert await checked.storage.get_value(NOTE, BACKGROUND) is None
    assert await checked.storage.read_list(LOG, None, BACKGROUND) == []


async def _all_calls_refused(storage: Storage, entry_id: str) -> None:
    branch = BranchScan(start=entry_id)
    with expect(StorageClosed):
        await storage.commit([append_list(LOG, 2)], BACKGROUND)
    with expect(StorageClosed):
        await storage.get_entries([entry_id], BACKGROUND)
    with expect(StorageClosed):
        await storage.get_value(NOTE, BACKGROUND)
    with expect(StorageClosed):
        await storage.scan_values(NOTE, BACKGROUND)
    with expect(StorageClosed):
        await storage.read_list(LOG, None, BACKGROUND)
    with expect(StorageClosed):
        await storage.scan_branch(branch, BACKGROUND)
    with expect(StorageClosed):
        await storage.scan_branch_structure(branch, BACKGROUND)
    with expect(StorageClosed):
        await storage.scan_entries(EntryScan(), BACKGROUND)
    with expect(StorageClosed):
        await storage.scan_usage(UsageScan(), BACKGROUND)
    with expect(StorageClosed):
        await storage.get_stats(BACKGROUND)


def _with_id(samples: Samples, entry_id: str) -> NewEntry:
    return NewEntry(id=entry_id, parent_id=None, payload=samples.user())
