"""A naive storage: the specification's sentences as list comprehensions, to compare backends with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_never

from harness.entries import Entry, custom_type_of, entry_type, place
from harness.storage.protocol import BranchScan, CommitResult, EntryScan, UsageScan
from harness.storage.writes import (
    AppendList,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from harness.usage import ZERO_USAGE, SessionStats, UsageRow, add_usage, stamp_usage


class Model:
    """Everything a session should hold, fed with the commits that succeeded."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.rows: list[UsageRow] = []
        # Any: values are compared as the JSON that was written.
        self.values: dict[tuple[str, str], tuple[int, Any]] = {}
        self.lists: dict[tuple[str, str], list[tuple[int, Any]]] = {}

    def apply(self, writes: Sequence[Write], result: CommitResult) -> None:
        """Record a committed transaction under the sequence numbers the backend gave it."""
        for write, seq in zip(writes, result.seqs, strict=True):
            match write:
                case InsertEntry(entry=new):
                    self.entries.append(
                        place(
                            new.payload,
                            id=new.id,
                            parent_id=new.parent_id,
                            seq=seq,
                            timestamp=result.timestamp,
                        )
                    )
                case InsertUsage(row=row):
                    self.rows.append(stamp_usage(row, seq))
                case SetValue(namespace=namespace, key=key, value=stored):
                    self.values[namespace, key] = (seq, stored)
                case DeleteValue(namespace=namespace, key=key):
                    self.values.pop((namespace, key), None)
                case AppendList(namespace=namespace, key=key, value=element):
                    self.lists.setdefault((namespace, key), []).append((seq, element))
                case DeleteList(namespace=namespace, key=key):
                    self.lists.pop((namespace, key), None)
                case _:
                    assert_never(write)

    def path(self, start: str) -> list[Entry]:
        """The entries from `start` to the root."""
        by_id = {entry.id: entry for entry in self.entries}
        found = [by_id[start]]
        while (parent := found[-1].parent_id) is not None:
            found.append(by_id[parent])
        return found

    def branch(self, query: BranchScan) -> list[Entry]:
        """§2.5, one sentence at a time."""
        ordered = self.path(query.start)
        if query.order == "oldestFirst":
            ordered.reverse()
        for index, entry in enumerate(ordered):
            if entry.id == query.stop_at_id or entry_type(entry) == query.stop_at_type:
                ordered = ordered[: index + 1]
                break
        kept = [entry for entry in ordered if _fits(entry, query.type, query.custom_type)]
        if query.cursor is not None:
            newest_first = query.order == "newestFirst"
            kept = [
                e for e in kept if (e.seq < query.cursor if newest_first else e.seq > query.cursor)
            ]
        return kept if query.limit is None else kept[: query.limit]

    def inventory(self, query: EntryScan) -> list[Entry]:
        """All entries between two sequence numbers."""
        kept = [
            entry
            for entry in self.entries
            if _fits(entry, query.type, query.custom_type)
            and _between(entry.seq, query.from_seq, query.to_seq)
        ]
        kept.sort(key=lambda entry: entry.seq, reverse=query.order == "desc")
        return kept if query.limit is None else kept[: query.limit]

    def ledger(self, query: UsageScan) -> list[UsageRow]:
        """All ledger rows between two sequence numbers."""
        kept = [row for row in self.rows if _between(row.seq, query.from_seq, query.to_seq)]
        kept.sort(key=lambda row: row.seq, reverse=query.order == "desc")
        return kept if query.limit is None else kept[: query.limit]

    def stats(self) -> SessionStats:
        """The totals, counted anew."""
        total = ZERO_USAGE
        for row in self.rows:
            total = add_usage(total, row.usage)
        messages = sum(1 for entry in self.entries if entry_type(entry) == "message")
        return SessionStats(message_count=messages, usage=total)


def _fits(entry: Entry, type_: str | None, custom_type: str | None) -> bool:
    return (type_ is None or entry_type(entry) == type_) and (
        custom_type is None or custom_type_of(entry) == custom_type
    )


def _between(seq: int, low: int | None, high: int | None) -> bool:
    return (low is None or seq >= low) and (high is None or seq <= high)
