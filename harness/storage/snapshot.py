"""A session's content at one moment, read piece by piece: the source of forks, rewrites and exports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from harness.entries import Entry
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.usage import UsageRow


class Snapshot(Protocol):
    """Reads block, so they run on a thread; later commits of the session change nothing here.

    All iterators go by sequence number. `next_seq` is where the session's numbers go on.
    """

    next_seq: int

    def entries(self, after_seq: int = 0) -> Iterator[Entry]:
        """All entries, or those after a sequence number."""
        ...

    def path(self, start: str) -> Iterator[Entry]:
        """The entries from the root to `start`; raises `StorageCorrupt` when it is unknown."""
        ...

    def values(self) -> Iterator[ValueRecord]:
        """All current values."""
        ...

    def elements(self) -> Iterator[ElementRecord]:
        """All list elements."""
        ...

    def usage(self) -> Iterator[UsageRow]:
        """The ledger."""
        ...

    def records(self) -> Iterator[Record]:
        """Everything."""
        ...

    def has_entry(self, entry_id: str) -> bool:
        """Whether the session has this entry."""
        ...

    def close(self) -> None:
        """Let go of what the snapshot holds. Idempotent."""
        ...


def seq_of(record: Record) -> int:
    """A record's sequence number, by which streams are merged."""
    return record.seq
