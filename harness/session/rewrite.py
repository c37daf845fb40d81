"""The precise rewrite: the one way in which entries and ledger rows leave a session (§2.9)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec

from harness.codec import decode, encode_str
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
)
from harness.errors import InvalidArgument
from harness.operation import values
from harness.storage.metadata import SessionMetadata
from harness.storage.records import ElementRecord, Record, ValueRecord, value_of
from harness.storage.snapshot import Snapshot
from harness.usage import UsageRow

Kept: TypeAlias = Record | None
_NAME_SPACE = values.SESSION_NAME.namespace


class Keep:
    """Decides, record by record, what stays. Override what should differ; by default all does.

    Each method returns the record, a changed one, or None to drop it. An entry may come back with
    another payload (to erase what was copied into a summary or a retained tail) and another id; its
    place, number and time stay. Children of a dropped entry move to its nearest kept ancestor, lanes
    too; labels of a dropped entry go with it; ledger rows that stay no longer name it.
    `entry` is asked twice about each entry and must answer the same.
    """

    def entry(self, entry: Entry) -> Entry | None:
        """What becomes of an entry."""
        return entry

    def usage(self, row: UsageRow) -> UsageRow | None:
        """What becomes of a ledger row."""
        return row

    def value(self, record: ValueRecord) -> ValueRecord | None:
        """What becomes of a value of the application, a label or the session's name."""
        return record

    def element(self, record: ElementRecord) -> ElementRecord | None:
        """What becomes of a list element; what stays keeps its number, which is its cursor."""
        return record


def rewrite_records(snapshot: Snapshot, keep: Keep) -> Iterator[Record]:
    """The retained content, by sequence.

    Raises `InvalidArgument` before anything else when an operation is open: its state names
    entries that might go.
    """
    lane_space = values.lane_state("").namespace
    for record in snapshot.values():
        if record.namespace == lane_space:
            state = value_of(record, values.lane_state(record.key))
            if state.current_operation_id is not None:
                raise InvalidArgument(
                    f"lane {record.key} has the open operation {state.current_operation_id}: "
                    "let it end before the session is rewritten"
                )
    return _Rewrite(keep).records(snapshot)


class _Rewrite:
    """Applies the decisions and mends what pointed at what is gone."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._moved: dict[str, str | None] = {}
        self._dropped: set[str] = set()

    def records(self, snapshot: Snapshot) -> Iterator[Record]:
        # Ledger rows and values may stand before the entries they name: decide on entries first.
        for entry in snapshot.entries():
            self._decide(entry)
        for record in snapshot.records():
            kept = self._apply(record)
            if kept is not None:
                yield kept

    def _decide(self, entry: Entry) -> None:
        kept = self._keep.entry(entry)
        if kept is None:
            self._dropped.add(entry.id)
            self._moved[entry.id] = self._translate(entry.parent_id)
        elif kept.id != entry.id:
            self._moved[entry.id] = kept.id

    def _translate(self, entry_id: str | None) -> str | None:
        return entry_id if entry_id is None else self._moved.get(entry_id, entry_id)

    def _apply(self, record: Record) -> Kept:
        match record:
            case MessageEntry() | CompactionEntry() | BranchSummaryEntry() | CustomEntry():
                return self._entry(record)
            case UsageRow():
                return self._usage(record)
            case ElementRecord(seq=seq):
                kept = self._keep.element(record)
                return (
                    None
                    if kept is None
                    else ElementRecord(seq, kept.namespace, kept.key, kept.json)
                )
            case ValueRecord():
                return self._value(record)

    def _entry(self, entry: Entry) -> Entry | None:
        kept = self._keep.entry(entry)
        if kept is None:
            return None
        kept = msgspec.structs.replace(
            kept,
            seq=entry.seq,
            timestamp=entry.timestamp,
            parent_id=self._translate(entry.parent_id),
        )
        if isinstance(kept, BranchSummaryEntry):
            kept = msgspec.structs.replace(kept, from_id=self._translate(kept.from_id))
        return kept

    def _usage(self, row: UsageRow) -> UsageRow | None:
        kept = self._keep.usage(row)
        if kept is None:
            return None
        entry_id = kept.entry_id
        if isinstance(entry_id, str):
            entry_id = (
                msgspec.UNSET
                if entry_id in self._dropped
                else self._moved.get(entry_id) or entry_id
            )
        return msgspec.structs.replace(kept, seq=row.seq, entry_id=entry_id)

    def _value(self, record: ValueRecord) -> ValueRecord | None:
        if record.namespace == values.lane_leaf_inventory_prefix().namespace:
            leaf = value_of(record, values.lane_leaf(record.key))
            return _with(record, json=encode_str(self._translate(leaf)))
        if record.namespace == values.lane_last_result("").namespace:
            return None if self._names_moved(record) else record
        if record.namespace == values.entry_label("").namespace:
            if record.key in self._dropped:
                return None
            record = _with(record, key=self._moved.get(record.key) or record.key)
        elif record.namespace.startswith("pi.") and record.namespace != _NAME_SPACE:
            # Lanes and what waits for their next run: without them it would be no session.
            return record
        kept = self._keep.value(record)
        return (
            None if kept is None else ValueRecord(record.seq, kept.namespace, kept.key, kept.json)
        )

    def _names_moved(self, record: ValueRecord) -> bool:
        """Whether a lane's last result, which nothing depends on, names an entry that is not there."""
        result = decode(record.json, dict[str, Any])
        return any(isinstance(named, str) and named in self._moved for named in result.values())


def _with(record: ValueRecord, *, key: str | None = None, json: str | None = None) -> ValueRecord:
    return ValueRecord(
        record.seq,
        record.namespace,
        record.key if key is None else key,
        record.json if json is None else json,
    )


def next_generation(metadata: SessionMetadata) -> SessionMetadata:
    """The session's metadata after a rewrite: the same session, another store (§2.8)."""
    return msgspec.structs.replace(metadata, store_generation=metadata.store_generation + 1)
