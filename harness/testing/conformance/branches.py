"""Conformance: walks toward the root, on trees with forks and compactions (§2.1, §2.5, §2.6)."""

from __future__ import annotations

import itertools

from harness.context import BACKGROUND
from harness.entries import EntryType, NewEntry
from harness.errors import InvalidArgument, StorageCorrupt
from harness.storage.protocol import BranchOrder, BranchScan
from harness.storage.writes import insert_entry
from harness.testing.conformance.backend import StorageBackend, expect
from harness.testing.conformance.checking import Checked, checked_chain
from harness.testing.conformance.samples import Samples

ORDERS: tuple[BranchOrder, ...] = ("newestFirst", "oldestFirst")
TYPES: tuple[EntryType | None, ...] = (None, "message", "compaction", "branch_summary", "custom")


class BranchConformance:
    """Every scan equals the naive walk over parent ids."""

    async def test_a_straight_line(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        chain = samples.chain(None, 25)
        await checked_chain(checked, [insert_entry(entry) for entry in chain])
        for start, order in itertools.product((chain[0], chain[12], chain[-1]), ORDERS):
            for limit in (None, 1, 5, 25, 100):
                await checked.branch(BranchScan(start=start.id, order=order, limit=limit))

    async def test_every_option_on_random_trees(self, backend: StorageBackend) -> None:
        for seed in range(3):
            samples, checked = Samples(seed), Checked(await backend.create())
            tree = samples.tree(60)
            await checked_chain(checked, [insert_entry(entry) for entry in tree])
            for query in _queries(samples, tree, 400):
                await checked.branch(_with_real_cursor(checked, query))
            await checked.storage.close(BACKGROUND)

    async def test_alternating_branches_and_compactions(self, backend: StorageBackend) -> None:
        """A segmented index that resolves a base wrongly loses or repeats entries here."""
        samples, checked = Samples(), Checked(await backend.create())
        trunk = await self._grow(samples, checked, None, 4)
        leaves: list[str] = []
        for turn in range(12):
            if turn % 3 == 1:
                compaction = samples.entry(trunk[-1], samples.compaction())
                await checked.commit(insert_entry(compaction))
                trunk.append(compaction.id)
            # A side branch from the middle, and then the trunk goes on from before it.
            fork = trunk[-2] if turn % 2 else trunk[len(trunk) // 2]
            side = await self._grow(samples, checked, fork, 3)
            leaves.append(side[-1])
            deeper = await self._grow(samples, checked, side[1], 2)
            leaves.append(deeper[-1])
            trunk += await self._grow(samples, checked, trunk[-1], 2)
        for start in (*leaves, *trunk):
            await checked.branch(BranchScan(start=start))
            await checked.branch(BranchScan(start=start, order="oldestFirst"))
            await checked.branch(BranchScan(start=start, stop_at_type="compaction"))
        await checked.everything()

    async def _grow(
        self, samples: Samples, checked: Checked, parent: str | None, length: int
    ) -> list[str]:
        chain = samples.chain(parent, length)
        await checked.commit(*(insert_entry(entry) for entry in chain))
        return [entry.id for entry in chain]

    async def test_many_branches_from_one_entry(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        stem = await self._grow(samples, checked, None, 6)
        tips: list[str] = []
        for _ in range(10):
            tips += await self._grow(samples, checked, stem[3], 2)
        tips += await self._grow(samples, checked, stem[-1], 2)
        # Grow the oldest branch again after younger ones exist.
        tips += await self._grow(samples, checked, tips[1], 2)
        for start in (*stem, *tips):
            await checked.branch(BranchScan(start=start))

    async def test_several_branches_grow_in_one_transaction(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        root = samples.entry(None)
        left, right = samples.entry(root.id), samples.entry(root.id, samples.compaction())
        under_left, under_right = samples.entry(left.id), samples.entry(right.id)
        other_root = samples.entry(None)
        late = samples.entry(left.id)
        order = [root, left, right, under_right, other_root, under_left, late]
        await checked.commit(*(insert_entry(entry) for entry in order))
        await checked.everything()
        for entry in order:
            await checked.branch(BranchScan(start=entry.id))

    async def test_an_unknown_start_is_corruption(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        await checked.commit(insert_entry(samples.entry(None)))
        for order in ORDERS:
            with expect(StorageCorrupt):
                await checked.storage.scan_branch(
                    BranchScan(start=samples.new_id(), order=order), BACKGROUND
                )
            with expect(StorageCorrupt):
                await checked.storage.scan_branch_structure(
                    BranchScan(start=samples.new_id(), order=order), BACKGROUND
                )

    async def test_bad_limits_are_refused(self, backend: StorageBackend) -> None:
        samples, checked = Samples(), Checked(await backend.create())
        entry = samples.entry(None)
        await checked.commit(insert_entry(entry))
        for limit in (0, -5, 2**53):
            with expect(InvalidArgument):
                await checked.storage.scan_branch(
                    BranchScan(start=entry.id, limit=limit), BACKGROUND
                )
            with expect(InvalidArgument):
                await checked.storage.scan_branch_structure(
                    BranchScan(start=entry.id, limit=limit), BACKGROUND
                )


def _queries(samples: Samples, tree: list[NewEntry], count: int) -> list[BranchScan]:
    """A seeded sample of all option combinations over the tree's entries."""
    ids = [entry.id for entry in tree]
    return [
        BranchScan(
            start=samples.rng.choice(ids),
            stop_at_type=samples.rng.choice((None, *TYPES)),
            stop_at_id=samples.rng.choice((None, None, samples.rng.choice(ids), samples.new_id())),
            type=samples.rng.choice((None, *TYPES)),
            custom_type=samples.rng.choice((None, None, None, "note", "mark", "absent")),
            order=samples.rng.choice(ORDERS),
            limit=samples.rng.choice((None, None, 1, 2, 5, 2**53 - 1)),
            cursor=samples.rng.choice((None, None, 0, 1, 2)),
        )
        for _ in range(count)
    ]


def _with_real_cursor(checked: Checked, query: BranchScan) -> BranchScan:
    """The query with its cursor moved onto, before or after the path's sequence numbers."""
    if query.cursor is None:
        return query
    seqs = [entry.seq for entry in checked.model.path(query.start)]
    cursor = (seqs[len(seqs) // 2], seqs[0] + 1, seqs[-1] - 1)[query.cursor]
    return BranchScan(
        start=query.start,
        stop_at_type=query.stop_at_type,
        stop_at_id=query.stop_at_id,
        type=query.type,
        custom_type=query.custom_type,
        order=query.order,
        limit=query.limit,
        cursor=cursor,
    )
