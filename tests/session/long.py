"""Sessions of ten thousand entries: branches and compactions in turn, on any backend."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.context import BACKGROUND
from harness.entries import NewEntry
from harness.operation import values
from harness.session.session import Session
from harness.storage.protocol import Storage
from harness.storage.writes import Write, insert_entry, insert_usage, set_value
from harness.testing.conformance.samples import Samples

SIZE = 10_000
AT_ONCE = 50


@dataclass(slots=True)
class LongHistory:
    """What was written: entries in order, and where the main lane stands."""

    samples: Samples = field(default_factory=Samples)
    entries: list[NewEntry] = field(default_factory=list[NewEntry])
    parents: dict[str, str | None] = field(default_factory=dict[str, str | None])
    leaf: str | None = None

    def grow(self, size: int) -> None:
        """Plan more entries: a few in line, sometimes a compaction, then on from a little before."""
        leaf = self.leaf
        while len(self.entries) < size:
            chain = self.samples.chain(leaf, 8)
            if self.samples.rng.random() < 0.3:
                chain.append(self.samples.entry(chain[-1].id, self.samples.compaction()))
            self.entries += chain
            self.parents.update((entry.id, entry.parent_id) for entry in chain)
            leaf = chain[-1 - self.samples.rng.randrange(4)].id
        # The newest context is short, wherever the history happens to end.
        last = [self.samples.entry(leaf, self.samples.compaction())]
        last += self.samples.chain(last[0].id, 5)
        self.entries += last
        self.parents.update((entry.id, entry.parent_id) for entry in last)
        self.leaf = last[-1].id

    def path(self, tip: str) -> list[str]:
        """The flat walk from an entry to the root."""
        walk = [tip]
        while (parent := self.parents[walk[-1]]) is not None:
            walk.append(parent)
        return walk


async def write(storage: Storage, history: LongHistory, start: int = 0) -> None:
    """Commit what was planned from entry number `start` on; a ledger row goes with each commit."""
    pending = history.entries[start:]
    for first in range(0, len(pending), AT_ONCE):
        batch = pending[first : first + AT_ONCE]
        writes: list[Write] = [insert_entry(entry) for entry in batch]
        writes.append(insert_usage(history.samples.row(entry_id=batch[-1].id)))
        writes.append(set_value(values.lane_leaf("main"), batch[-1].id))
        await storage.commit(writes, BACKGROUND)


async def fill_long(session: Session, size: int = SIZE) -> LongHistory:
    """A long history in a session."""
    history = LongHistory()
    history.grow(size)
    await write(session.storage, history)
    return history
