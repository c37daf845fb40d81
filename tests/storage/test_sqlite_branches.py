"""The segmented branch index: sound chains, bounded copies, repair (§2.6)."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from harness.context import BACKGROUND
from harness.entries import NewEntry
from harness.errors import StorageCorrupt
from harness.storage.branch_index import MAX_COPIED_ROWS
from harness.storage.protocol import BranchScan, Storage
from harness.storage.sqlite import SqliteStorage
from harness.storage.writes import insert_entry
from harness.testing.conformance.checking import Checked
from harness.testing.conformance.samples import Samples
from tests.storage.support import new_sqlite


async def write(storage: Storage, entries: list[NewEntry], size: int = 500) -> None:
    for start in range(0, len(entries), size):
        batch = [insert_entry(entry) for entry in entries[start : start + size]]
        await storage.commit(batch, BACKGROUND)


def rows_by_branch(path: Path) -> dict[str, int]:
    with sqlite3.connect(path) as connection:
        found = connection.execute(
            "SELECT branch_id, count(*) FROM branch_entries GROUP BY branch_id"
        )
        counts = dict(found.fetchall())
    connection.close()
    return counts


def base_of(path: Path, branch_id: str) -> tuple[str, int]:
    connection = sqlite3.connect(path)
    found = connection.execute(
        "SELECT base_branch_id, base_seq FROM branch_meta WHERE branch_id = ?", (branch_id,)
    )
    base = found.fetchone()
    connection.close()
    return base


async def test_a_divergence_copies_only_back_to_the_newest_compaction(tmp_path: Path) -> None:
    storage, samples = await new_sqlite(tmp_path / "s.sqlite"), Samples()
    before = samples.chain(None, 300)
    compaction = samples.entry(before[-1].id, samples.compaction())
    after = samples.chain(compaction.id, 5)
    await write(storage, [*before, compaction, *after])
    side = samples.entry(after[2].id)
    # The second divergence starts inside the first side branch, whose own rows hold no compaction.
    inner = samples.chain(side.id, 2)
    deeper = samples.entry(inner[0].id)
    await write(storage, [side, *inner, deeper])
    counts = rows_by_branch(tmp_path / "s.sqlite")
    assert counts[side.id] == 3 + 1 + 2
    assert counts[deeper.id] == 3 + 1 + 1 + 1
    # Its base is the branch that holds the compaction, not a hop through a segment without one:
    # divergence upon divergence must not make the chain longer.
    assert base_of(tmp_path / "s.sqlite", deeper.id) == (before[0].id, 301)
    for tip in (after[-1], inner[-1], deeper):
        found = await storage.scan_branch(BranchScan(start=tip.id), BACKGROUND)
        assert found[-1].id == before[0].id
        context = await storage.scan_branch(
            BranchScan(start=tip.id, stop_at_type="compaction"), BACKGROUND
        )
        assert context[-1].id == compaction.id
    await storage.close(BACKGROUND)


async def test_a_divergence_without_any_compaction_copies_a_bounded_tail(tmp_path: Path) -> None:
    storage, samples = await new_sqlite(tmp_path / "s.sqlite"), Samples()
    trunk = samples.chain(None, 3 * MAX_COPIED_ROWS)
    await write(storage, trunk)
    sides = [samples.entry(trunk[-2 - number].id) for number in range(4)]
    await write(storage, sides)
    # A side branch that grew and is left again: the copy crosses from one segment into its base.
    grown = samples.chain(sides[0].id, 600)
    again = samples.entry(grown[-2].id)
    await write(storage, [*grown, again])
    counts = rows_by_branch(tmp_path / "s.sqlite")
    assert all(counts[side.id] <= MAX_COPIED_ROWS + 601 for side in sides)
    assert counts[again.id] == MAX_COPIED_ROWS + 1
    path = await storage.scan_branch(BranchScan(start=again.id), BACKGROUND)
    expected = [*trunk[: len(trunk) - 1], sides[0], *grown[:-1], again]
    assert [entry.id for entry in reversed(path)] == [entry.id for entry in expected]
    await storage.close(BACKGROUND)


async def test_branches_and_compactions_in_turn_over_ten_thousand_entries(tmp_path: Path) -> None:
    storage, samples = await new_sqlite(tmp_path / "s.sqlite"), Samples()
    parents: dict[str, str | None] = {}
    leaf: str | None = None
    batch: list[NewEntry] = []
    while len(parents) < 10_000:
        chain = samples.chain(leaf, 8)
        if samples.rng.random() < 0.3:
            chain.append(samples.entry(chain[-1].id, samples.compaction()))
        for entry in chain:
            parents[entry.id] = entry.parent_id
        batch += chain
        # Go on from a little before the tip, so that each turn diverges from the one before.
        leaf = chain[-1 - samples.rng.randrange(4)].id
    await write(storage, batch, 1_000)
    for start in (leaf, batch[-1].id, batch[5_000].id):
        assert start is not None
        flat = [start]
        while (parent := parents[flat[-1]]) is not None:
            flat.append(parent)
        found = await storage.scan_branch(BranchScan(start=start), BACKGROUND)
        assert [entry.id for entry in found] == flat
        oldest = await storage.scan_branch_structure(
            BranchScan(start=start, order="oldestFirst"), BACKGROUND
        )
        assert [entry.id for entry in oldest] == flat[::-1]
    # What a divergence copies is bounded by the distance to the newest compaction, not by history.
    assert sum(rows_by_branch(tmp_path / "s.sqlite").values()) < 8 * len(parents)
    await storage.close(BACKGROUND)


async def test_a_context_read_takes_few_statements_however_long_the_history(tmp_path: Path) -> None:
    storage, samples = await new_sqlite(tmp_path / "s.sqlite"), Samples()
    trunk = samples.chain(None, 2_000)
    compaction = samples.entry(trunk[-1].id, samples.compaction())
    tail = samples.chain(compaction.id, 10)
    await write(storage, [*trunk, compaction, *tail])
    seen: list[str] = []
    storage._file._db.set_trace_callback(seen.append)
    found = await storage.scan_branch(
        BranchScan(start=tail[-1].id, stop_at_type="compaction"), BACKGROUND
    )
    assert len(found) == 11
    assert len(seen) <= 3
    await storage.close(BACKGROUND)


async def test_repair_rebuilds_the_index_and_reads_never_do(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    samples = Samples(3)
    checked = Checked(await new_sqlite(path))
    for entry in samples.tree(120):
        await checked.commit(insert_entry(entry))
    start = checked.model.entries[-1].id
    _run(path, "DELETE FROM branch_entries")
    for order in ("newestFirst", "oldestFirst"):
        with pytest.raises(StorageCorrupt, match="branch index"):
            await checked.storage.scan_branch(BranchScan(start=start, order=order), BACKGROUND)
    _run(path, "DELETE FROM branch_meta")
    with pytest.raises(StorageCorrupt, match="branch index"):
        await checked.storage.commit([insert_entry(samples.entry(start))], BACKGROUND)
    storage = checked.storage
    assert isinstance(storage, SqliteStorage)
    assert await storage.repair_branch_index(BACKGROUND) == 120
    await checked.everything()
    await checked.commit(insert_entry(samples.entry(start)))
    await checked.everything()
    await storage.close(BACKGROUND)


def _run(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
