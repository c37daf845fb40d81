"""A snapshot shows one moment, whatever the session does afterwards (§2.7)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.errors import SessionInUse
from harness.session.fork import BranchFork, TreeFork, fork_records
from harness.storage.address import list_of, value
from harness.storage.memory import MemoryStorage
from harness.storage.memory_copy import MemorySnapshot
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import Storage
from harness.storage.snapshot import Snapshot
from harness.storage.sqlite import LEASE_TTL_MS
from harness.storage.sqlite_copy import SqliteSnapshot, delete_sqlite, rewrite_sqlite
from harness.storage.sqlite_create import write_sqlite
from harness.storage.writes import (
    append_list,
    delete_list,
    delete_value,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.testing.conformance.samples import Samples
from tests.storage.support import new_sqlite

LOG = list_of(Any, "app.log")


@pytest.fixture(params=["memory", "sqlite"])
async def source(request: pytest.FixtureRequest, tmp_path: Path):
    """A storage and how to take a snapshot of it."""
    storage: Storage
    take: Callable[[], Snapshot]
    if request.param == "memory":
        storage = MemoryStorage(SystemClock())
        state = storage.state
        take = lambda: MemorySnapshot(state)  # noqa: E731
    else:
        storage = await new_sqlite(tmp_path / "s.sqlite")
        take = lambda: SqliteSnapshot(tmp_path / "s.sqlite")  # noqa: E731
    yield storage, take
    await storage.close(BACKGROUND)


def content(snapshot: Snapshot, leaf: str) -> list[list[Any]]:
    return [
        list(snapshot.entries()),
        list(snapshot.path(leaf)),
        list(snapshot.values()),
        list(snapshot.elements()),
        list(snapshot.usage()),
        list(snapshot.records()),
        [snapshot.next_seq],
    ]


async def test_later_commits_do_not_show(
    source: tuple[Storage, Callable[[], Snapshot]],
) -> None:
    storage, take = source
    samples = Samples()
    chain = samples.chain(None, 3)
    side = samples.entry(chain[0].id)
    await storage.commit(
        [
            *(insert_entry(entry) for entry in (*chain, side)),
            insert_usage(samples.row()),
            set_value(value(Any, "app.v", "kept"), 1),
            set_value(value(Any, "app.v", "replaced"), 1),
            set_value(value(Any, "app.v", "deleted"), 1),
            append_list(LOG, "one"),
            append_list(list_of(Any, "app.other"), "stays"),
            append_list(LOG, "two"),
        ],
        BACKGROUND,
    )
    earlier = take()
    before = content(earlier, chain[-1].id)
    new = samples.entry(chain[-1].id)
    # The first commit with the snapshot open, and more of every kind.
    await storage.commit([insert_entry(new), append_list(LOG, "three")], BACKGROUND)
    await storage.commit(
        [
            insert_usage(samples.row()),
            set_value(value(Any, "app.v", "replaced"), 2),
            set_value(value(Any, "app.v", "new"), 2),
            delete_value(value(Any, "app.v", "deleted")),
            delete_list(LOG),
            append_list(LOG, "fresh"),
            append_list(list_of(Any, "app.other"), "more"),
        ],
        BACKGROUND,
    )
    assert content(earlier, chain[-1].id) == before
    assert not earlier.has_entry(new.id)
    assert earlier.has_entry(side.id)
    later = take()
    after = content(later, new.id)
    assert [len(part) for part in before] == [4, 3, 3, 3, 1, 11, 1]
    assert [len(part) for part in after] == [5, 4, 3, 3, 2, 13, 1]
    assert later.has_entry(new.id)
    seqs = [record.seq for record in after[5]]
    assert seqs == sorted(set(seqs))
    for snapshot in (earlier, later):
        snapshot.close()
        snapshot.close()


async def test_a_fork_of_ten_thousand_entries_needs_the_memory_of_a_few(tmp_path: Path) -> None:
    """Memory is measured, not time: what a fork holds must not grow with the session."""
    storage, samples = await new_sqlite(tmp_path / "s.sqlite"), Samples()
    leaf: str | None = None
    peaks: dict[int, int] = {}
    for size in (1_000, 10_000):
        count = size if leaf is None else size - 1_000
        chain = samples.chain(leaf, count)
        leaf = chain[-1].id
        await storage.commit(
            [
                *(insert_entry(e) for e in chain),
                set_value(value(Any, "pi.lane.leaf", "main"), leaf),
            ],
            BACKGROUND,
        )
        del chain
        for number, options in enumerate((TreeFork(), BranchFork())):
            snapshot = SqliteSnapshot(tmp_path / "s.sqlite")
            target = tmp_path / f"fork-{size}-{number}.sqlite"
            tracemalloc.start()
            write_sqlite(
                target, SessionMetadata(id="f", created_at=1), fork_records(snapshot, options)
            )
            peaks[size] = max(peaks.get(size, 0), tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
            snapshot.close()
    await storage.close(BACKGROUND)
    assert peaks[10_000] < 2 * peaks[1_000] + 100_000


async def test_a_reader_holds_off_a_rewrite_and_a_deletion(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    storage = await new_sqlite(path)
    await storage.commit([set_value(value(Any, "app.v"), 1)], BACKGROUND)
    await storage.close(BACKGROUND)
    reader = SqliteSnapshot(path)
    for act in (
        lambda: delete_sqlite(path, SystemClock(), LEASE_TTL_MS),
        lambda: rewrite_sqlite(
            path, SystemClock(), LEASE_TTL_MS, lambda snapshot, old: (old, snapshot.records())
        ),
    ):
        with pytest.raises(SessionInUse, match="a reader"):
            act()
        assert [record.json for record in reader.values()] == ["1"]
    reader.close()
    rewrite_sqlite(
        path, SystemClock(), LEASE_TTL_MS, lambda snapshot, old: (old, snapshot.records())
    )
    after = SqliteSnapshot(path)
    assert [record.json for record in after.values()] == ["1"]
    after.close()
    delete_sqlite(path, SystemClock(), LEASE_TTL_MS)
    assert list(tmp_path.iterdir()) == []
