"""Conformance: session-wide reads by sequence, the ledger and its maintained totals (§1.5, §1.6)."""

from __future__ import annotations

import itertools
from typing import get_args

from harness.context import BACKGROUND
from harness.entries import EntryType
from harness.errors import InvalidArgument
from harness.storage.address import value
from harness.storage.protocol import EntryScan, SeqOrder, UsageScan
from harness.storage.writes import Write, insert_entry, insert_usage, set_value
from harness.testing.conformance.backend import StorageBackend, expect
from harness.testing.conformance.checking import Checked, checked_chain
from harness.testing.conformance.samples import Samples
from harness.usage import NewUsageRow

SEQ_ORDERS: tuple[SeqOrder, ...] = get_args(SeqOrder)
ENTRY_TYPES: tuple[EntryType, ...] = get_args(EntryType)


class InventoryConformance:
    """Reads that list what a session holds."""

    async def test_entries_by_id(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        chain = samples.chain(None, 1_500)
        row = samples.row()
        writes: list[Write] = [insert_entry(entry) for entry in chain]
        await checked.commit(*writes, insert_usage(row))
        everything = {entry.id: entry for entry in checked.model.entries}
        read = checked.storage.get_entries
        assert dict(await read([], BACKGROUND)) == {}
        assert dict(await read([samples.new_id(), row.id, "not an id"], BACKGROUND)) == {}
        assert dict(await read([entry.id for entry in chain], BACKGROUND)) == everything
        wanted = [chain[3].id, samples.new_id(), chain[1].id, chain[3].id]
        assert dict(await read(wanted, BACKGROUND)) == {
            i: everything[i] for i in (chain[3].id, chain[1].id)
        }

    async def test_entry_inventory_with_every_option(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        tree = samples.tree(50)
        for entry in tree:
            await checked.commit(insert_entry(entry), set_value(value(int, "app.gap"), 1))
        seqs = [entry.seq for entry in checked.model.entries]
        bounds = [(None, None), (seqs[10], None), (None, seqs[20]), (seqs[5], seqs[30])]
        bounds += [
            (seqs[8] + 1, seqs[9]),
            (seqs[9], seqs[9]),
            (seqs[-1] + 1, None),
            (seqs[20], seqs[10]),
        ]
        options = itertools.product(
            bounds, (None, *ENTRY_TYPES), (None, "note", "absent"), SEQ_ORDERS, (None, 1, 7)
        )
        for (low, high), type_, custom_type, order, limit in options:
            query = EntryScan(
                type=type_,
                custom_type=custom_type,
                from_seq=low,
                to_seq=high,
                order=order,
                limit=limit,
            )
            found = await checked.storage.scan_entries(query, BACKGROUND)
            assert found == checked.model.inventory(query), query

    async def test_ledger_by_sequence(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        for number in range(20):
            entry = samples.entry(None)
            row = samples.row(entry_id=entry.id if number % 2 else None, adjustment=number % 5 == 0)
            await checked.commit(insert_entry(entry), insert_usage(row))
        seqs = [row.seq for row in checked.model.rows]
        bounds = [
            (None, None),
            (seqs[5], None),
            (None, seqs[5]),
            (seqs[5] + 1, seqs[9]),
            (seqs[9], seqs[5]),
        ]
        for (low, high), order, limit in itertools.product(bounds, SEQ_ORDERS, (None, 1, 6)):
            query = UsageScan(from_seq=low, to_seq=high, order=order, limit=limit)
            assert await checked.storage.scan_usage(query, BACKGROUND) == checked.model.ledger(
                query
            ), query

    async def test_ledger_rows_come_back_whole(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        usage, entry = samples.usage(), samples.entry(None)
        plain = NewUsageRow(id=samples.new_id(), usage=usage)
        full = NewUsageRow(
            id=samples.new_id(),
            usage=usage,
            entry_id=entry.id,
            adjustment=True,
            details={"source": ["x", None]},
        )
        # A row may name an entry that does not exist (yet): the ledger outlives what it bills.
        early = NewUsageRow(id=samples.new_id(), usage=usage, entry_id=samples.new_id())
        await checked.commit(
            *(insert_usage(row) for row in (plain, full, early)), insert_entry(entry)
        )
        await checked.everything()

    async def test_stats_equal_the_ledger_after_every_commit(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        for entry in samples.tree(30):
            writes: list[Write] = [insert_entry(entry)]
            writes += [insert_usage(samples.row()) for _ in range(samples.rng.randrange(3))]
            await checked.commit(*writes)
            assert await checked.storage.get_stats(BACKGROUND) == checked.model.stats()

    async def test_bad_scan_limits_are_refused(self, backend: StorageBackend) -> None:
        storage = await backend.create()
        for limit in (0, -1, 2**53):
            with expect(InvalidArgument):
                await storage.scan_entries(EntryScan(limit=limit), BACKGROUND)
            with expect(InvalidArgument):
                await storage.scan_usage(UsageScan(limit=limit), BACKGROUND)

    async def test_inventory_goes_on_where_a_reader_stopped(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        await checked_chain(checked, [insert_entry(entry) for entry in samples.chain(None, 40)])
        seen, after = list[str](), 0
        while page := await checked.storage.scan_entries(
            EntryScan(from_seq=after + 1, limit=7), BACKGROUND
        ):
            seen += [entry.id for entry in page]
            after = page[-1].seq
        assert seen == [entry.id for entry in checked.model.entries]
