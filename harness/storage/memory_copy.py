"""Moves stored content into and out of the Memory maps: replaying a file, and coherent snapshots."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from harness.codec import encode_str
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
)
from harness.errors import StorageCorrupt
from harness.storage.memory import MemoryState
from harness.storage.protocol import BranchScan, ListElement
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.storage.snapshot import seq_of
from harness.usage import SessionStats, UsageRow, add_usage


def restore(state: MemoryState, record: Record) -> None:
    """Put a stored record into the maps under its own sequence number.

    Values keep their text until somebody reads them with a typed address. Raises `StorageCorrupt`
    for a repeated id or a missing parent.
    """
    match record:
        case ValueRecord(seq=seq, namespace=namespace, key=key, json=text):
            state.values.setdefault(namespace, {})[key] = (seq, _encoded(text))
        case ElementRecord(seq=seq, namespace=namespace, key=key, json=text):
            elements = state.lists.setdefault((namespace, key), [])
            elements.append(ListElement(seq, _encoded(text)))
        case UsageRow():
            _check_id(state, record.id)
            state.usage[record.id] = record
            state.stats = SessionStats(
                message_count=state.stats.message_count,
                usage=add_usage(state.stats.usage, record.usage),
            )
        case MessageEntry() | CompactionEntry() | BranchSummaryEntry() | CustomEntry():
            _restore_entry(state, record)
    state.next_seq = max(state.next_seq, record.seq + 1)


def _restore_entry(state: MemoryState, entry: Entry) -> None:
    _check_id(state, entry.id)
    if entry.parent_id is not None and entry.parent_id not in state.entries:
        raise StorageCorrupt(f"entry {entry.id} names missing parent {entry.parent_id}")
    state.entries[entry.id] = entry
    state.order.append(entry)
    if isinstance(entry, MessageEntry):
        state.stats = SessionStats(
            message_count=state.stats.message_count + 1, usage=state.stats.usage
        )


def _check_id(state: MemoryState, new_id: str) -> None:
    if new_id in state.entries or new_id in state.usage:
        raise StorageCorrupt(f"id {new_id} is written twice")


def _encoded(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


# Any: the maps erase value types; a stored value is either typed or still text.
def stored_text(stored: Any) -> str:
    """The JSON text of a value in the maps."""
    return encode_str(stored)


class MemorySnapshot:
    """The content of the maps at one moment.

    It holds references, not copies: entries, ledger rows and list elements are only ever added, so
    remembering how many there were is enough.
    """

    def __init__(self, state: MemoryState) -> None:
        self._state = state
        self._entry_count = len(state.order)
        self._usage = list(state.usage.values())
        self._values = [
            (seq, namespace, key, stored)
            for namespace, keys in state.values.items()
            for key, (seq, stored) in keys.items()
        ]
        self._values.sort(key=lambda found: found[0])
        self._lists = [
            (namespace, key, elements, len(elements))
            for (namespace, key), elements in state.lists.items()
        ]
        self.next_seq = state.next_seq

    def entries(self, after_seq: int = 0) -> Iterator[Entry]:
        """All entries, or those after a sequence number, by sequence."""
        order = self._state.order
        first = bisect_right(order, after_seq, hi=self._entry_count, key=seq_of)
        return islice(order, first, self._entry_count)

    def path(self, start: str) -> Iterator[Entry]:
        """The entries from the root to `start`."""
        # Parents never change, so a later walk finds the same path.
        return iter(self._state.branch(BranchScan(start=start, order="oldestFirst")))

    def values(self) -> Iterator[ValueRecord]:
        """All current values, by sequence."""
        for seq, namespace, key, stored in self._values:
            yield ValueRecord(seq, namespace, key, stored_text(stored))

    def elements(self) -> Iterator[ElementRecord]:
        """All list elements, by sequence."""
        return heapq.merge(
            *(self._elements_of(*found) for found in self._lists), key=lambda element: element.seq
        )

    # Any: the maps erase element types.
    def _elements_of(
        self, namespace: str, key: str, elements: list[ListElement[Any]], count: int
    ) -> Iterator[ElementRecord]:
        for element in islice(elements, count):
            yield ElementRecord(element.seq, namespace, key, stored_text(element.value))

    def usage(self) -> Iterator[UsageRow]:
        """The ledger, by sequence."""
        return iter(self._usage)

    def records(self) -> Iterator[Record]:
        """Everything, by sequence."""
        return heapq.merge(self.entries(), self.usage(), self.values(), self.elements(), key=seq_of)

    def has_entry(self, entry_id: str) -> bool:
        """Whether the session had this entry."""
        entry = self._state.entries.get(entry_id)
        return entry is not None and entry.seq < self.next_seq

    def close(self) -> None:
        """Nothing is held but memory."""
