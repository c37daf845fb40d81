"""A storage paired with the naive model: every commit feeds both, every check compares both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.context import BACKGROUND
from harness.entries import structure_of
from harness.storage.address import list_of, value
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    EntryScan,
    ListRead,
    Storage,
    UsageScan,
)
from harness.storage.writes import Write
from harness.testing.conformance.model import Model


class Checked:
    """Drives one storage and knows what it must contain."""

    def __init__(self, storage: Storage, model: Model | None = None) -> None:
        self.storage = storage
        self.model = Model() if model is None else model

    async def commit(self, *writes: Write) -> CommitResult:
        """Commit, check the shape of the result, and remember what was written."""
        result = await self.storage.commit(writes, BACKGROUND)
        assert len(result.seqs) == len(writes)
        assert list(result.seqs) == sorted(set(result.seqs)), "seqs must strictly increase"
        if writes:
            assert result.first_seq == result.seqs[0]
            assert result.first_seq > self.last_seq, "seqs must go on after earlier transactions"
        self.model.apply(writes, result)
        return result

    @property
    def last_seq(self) -> int:
        """The highest sequence number the model has seen in live content."""
        model = self.model
        return max(
            (
                0,
                *(entry.seq for entry in model.entries),
                *(row.seq for row in model.rows),
                *(seq for seq, _ in model.values.values()),
                *(seq for elements in model.lists.values() for seq, _ in elements),
            )
        )

    async def branch(self, query: BranchScan) -> None:
        """Compare one branch scan, with and without payloads."""
        expected = self.model.branch(query)
        assert await self.storage.scan_branch(query, BACKGROUND) == expected, query
        structures = await self.storage.scan_branch_structure(query, BACKGROUND)
        assert structures == [structure_of(entry) for entry in expected], query

    async def everything(self) -> None:
        """Compare all stored content: entries, every root path, ledger, stats, values and lists."""
        storage, model = self.storage, self.model
        assert await storage.scan_entries(EntryScan(), BACKGROUND) == model.inventory(EntryScan())
        ids = [entry.id for entry in model.entries]
        assert dict(await storage.get_entries(ids, BACKGROUND)) == {e.id: e for e in model.entries}
        assert await storage.scan_usage(UsageScan(), BACKGROUND) == model.ledger(UsageScan())
        assert await storage.get_stats(BACKGROUND) == model.stats()
        parents = {entry.parent_id for entry in model.entries}
        for leaf in (entry.id for entry in model.entries if entry.id not in parents):
            await self.branch(BranchScan(start=leaf))
        await self.values()
        await self.lists()

    async def values(self) -> None:
        """Compare every namespace."""
        for namespace in {namespace for namespace, _ in self.model.values}:
            await self.scan(namespace, "")

    async def scan(self, namespace: str, prefix: str) -> None:
        """Compare one prefix scan."""
        expected = sorted(
            (key, seq, stored)
            for (space, key), (seq, stored) in self.model.values.items()
            if space == namespace and key.startswith(prefix)
        )
        found = await self.storage.scan_values(value(Any, namespace, prefix), BACKGROUND)
        assert [(v.address.key, v.seq, v.value) for v in found] == expected
        assert {v.address.namespace for v in found} <= {namespace}

    async def lists(self) -> None:
        """Compare every list, in both orders."""
        for namespace, key in self.model.lists:
            await self.read(namespace, key, ListRead())
            await self.read(namespace, key, ListRead(order="desc"))

    async def read(self, namespace: str, key: str, options: ListRead) -> None:
        """Compare one page of a list."""
        elements = self.model.lists.get((namespace, key), [])
        expected = [
            (seq, element)
            for seq, element in (elements if options.order == "asc" else reversed(elements))
            if options.cursor is None
            or (seq > options.cursor if options.order == "asc" else seq < options.cursor)
        ][: min(options.limit, 10_000)]
        found = await self.storage.read_list(list_of(Any, namespace, key), options, BACKGROUND)
        assert [(element.seq, element.value) for element in found] == expected


async def checked_chain(checked: Checked, writes: Sequence[Write], size: int = 7) -> None:
    """Commit writes in transactions of at most `size`."""
    for start in range(0, len(writes), size):
        await checked.commit(*writes[start : start + size])
