"""Everything a session holds, typed, from any backend: what invariants are checked on and sides are compared by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from harness.codec import JsonValue, decode, encode
from harness.entries import Entry
from harness.operation import values
from harness.operation.lane_state import LaneState
from harness.operation.payloads import PendingEntry
from harness.operation.state import OperationMeta, OperationState
from harness.storage.address import Value, ValueList
from harness.storage.memory import MemoryState
from harness.storage.memory_copy import MemorySnapshot, restore
from harness.storage.protocol import ListElement
from harness.storage.records import Record
from harness.storage.rows import decode_json
from harness.storage.snapshot import Snapshot
from harness.usage import UsageRow

T = TypeVar("T")

# Any: one table of addresses of mixed value types.
VALUE_TYPES: dict[str, Any] = {
    address.namespace: address.type
    for address in (
        values.lane_leaf(""),
        values.lane_config(""),
        values.lane_state(""),
        values.lane_last_result(""),
        values.operation_meta(""),
        values.operation_state(""),
        values.operation_tool_args_prefix(""),
        values.operation_tool_memo_prefix(""),
        values.operation_preparation_prefix(""),
        values.pending_entry(""),
        values.pending_tool_output_prefix(""),
        values.SESSION_NAME,
        values.entry_label(""),
    )
}
_FRAMES = values.pending_assistant_frames("", "")
LIST_TYPES: dict[str, Any] = {_FRAMES.namespace: _FRAMES.type}


class Content:
    """One session at one moment. Shares the maps it is given: read it before they change."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state

    @classmethod
    def of_records(cls, records: Iterable[Record]) -> Content:
        """From stored content; raises `StorageCorrupt` for a repeated id or a missing parent."""
        state = MemoryState()
        for record in records:
            restore(state, record)
        return cls(state)

    @classmethod
    def of_snapshot(cls, snapshot: Snapshot) -> Content:
        """From a backend's snapshot, which stays open."""
        return cls.of_records(snapshot.records())

    def copy(self) -> Content:
        """The same content on maps of its own."""
        return Content.of_snapshot(MemorySnapshot(self.state))

    @property
    def entries(self) -> Mapping[str, Entry]:
        """Entries by id, in the order in which they were committed."""
        return self.state.entries

    @property
    def usage(self) -> Mapping[str, UsageRow]:
        """Ledger rows by id, in order."""
        return self.state.usage

    def get(self, address: Value[T]) -> T | None:
        """The value at an address. JSON null and absence look alike; see `has`."""
        found = self.state.values.get(address.namespace, {}).get(address.key)
        typed: T | None = None if found is None else _typed(found[1], address.type)
        return typed

    def has(self, address: Value[T]) -> bool:
        """Whether there is a value at an address."""
        return address.key in self.state.values.get(address.namespace, {})

    def keys(self, namespace: str) -> list[str]:
        """The keys of a namespace of values."""
        return list(self.state.values.get(namespace, {}))

    def namespaces(self) -> Iterator[tuple[str, str, str]]:
        """Kind, namespace and key of every value and list that exists."""
        for namespace, keys in self.state.values.items():
            for key in keys:
                yield "value", namespace, key
        for (namespace, key), elements in self.state.lists.items():
            if elements:
                yield "list", namespace, key

    def elements(self, address: ValueList[T]) -> list[ListElement[T]]:
        """A whole list."""
        found: list[ListElement[T]] = self.state.lists.get((address.namespace, address.key), [])
        return [ListElement(element.seq, _typed(element.value, address.type)) for element in found]

    def lanes(self) -> list[str]:
        """The names of all lanes."""
        return sorted(self.keys(values.lane_leaf("").namespace))

    def lane_state(self, lane: str) -> LaneState | None:
        """What a lane is doing."""
        return self.get(values.lane_state(lane))

    def leaf(self, lane: str) -> str | None:
        """Where a lane stands."""
        return self.get(values.lane_leaf(lane))

    def operation(self, operation_id: str) -> tuple[OperationMeta | None, OperationState | None]:
        """An operation's acceptance data and state."""
        return (
            self.get(values.operation_meta(operation_id)),
            self.get(values.operation_state(operation_id)),
        )

    def current(self, lane: str) -> str | None:
        """The operation that is open on a lane."""
        state = self.lane_state(lane)
        return None if state is None else state.current_operation_id

    def pending(self, entry_id: str) -> PendingEntry | None:
        """Content that waits under an entry id."""
        return self.get(values.pending_entry(entry_id))

    def path(self, tip: str | None) -> list[Entry]:
        """The entries from the root to `tip`, by parent ids."""
        found: list[Entry] = []
        while tip is not None:
            entry = self.entries[tip]
            found.append(entry)
            tip = entry.parent_id
        found.reverse()
        return found

    def plain(self) -> dict[str, JsonValue]:
        """Everything logical as JSON: no sequence numbers, no storage times, in committed order."""
        return {
            "entries": [_without(entry, "seq", "timestamp") for entry in self.state.order],
            "usage": [_without(row, "seq") for row in self.usage.values()],
            "values": [
                [namespace, key, _json(value)] for _, namespace, key, value in self._ordered()
            ],
            "lists": [
                [namespace, key, [_json(element.value) for element in elements]]
                for (namespace, key), elements in sorted(
                    self.state.lists.items(), key=lambda item: item[1][0].seq if item[1] else 0
                )
                if elements
            ],
        }

    # Any: the maps erase value types.
    def _ordered(self) -> Sequence[tuple[int, str, str, Any]]:
        found = [
            (seq, namespace, key, value)
            for namespace, keys in self.state.values.items()
            for key, (seq, value) in keys.items()
        ]
        found.sort(key=lambda item: item[0])
        return found

    def differences(self, other: Content) -> list[str]:
        """Where two contents differ, sequence numbers and times of entries included."""
        problems: list[str] = []
        mine, theirs = self.state, other.state
        problems += _compare("entry", mine.entries, theirs.entries)
        problems += _compare("ledger row", mine.usage, theirs.usage)
        problems += _compare("value", _flat_values(mine), _flat_values(theirs))
        problems += _compare("list", _flat_lists(mine), _flat_lists(theirs))
        if mine.stats != theirs.stats:
            problems.append(f"totals {mine.stats} and {theirs.stats}")
        return problems


# Any: the maps erase value types, and a union is no type[T].
def _typed(stored: Any, type_: Any) -> Any:
    return decode(bytes(stored), type_) if isinstance(stored, msgspec.Raw) else stored


def _json(stored: Any) -> JsonValue:
    return decode_json(bytes(stored) if isinstance(stored, msgspec.Raw) else encode(stored))


def _without(record: Entry | UsageRow, *fields: str) -> dict[str, JsonValue]:
    plain: dict[str, JsonValue] = msgspec.to_builtins(record)
    for field in fields:
        plain.pop(field, None)
    return plain


def _flat_values(state: MemoryState) -> dict[str, tuple[int, JsonValue]]:
    return {
        f"{namespace}/{key}": (seq, _json(value))
        for namespace, keys in state.values.items()
        for key, (seq, value) in keys.items()
    }


def _flat_lists(state: MemoryState) -> dict[str, list[tuple[int, JsonValue]]]:
    return {
        f"{namespace}/{key}": [(element.seq, _json(element.value)) for element in elements]
        for (namespace, key), elements in state.lists.items()
        if elements
    }


def _compare(what: str, left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    if left == right:
        return []
    problems = [f"{what} {key} exists on one side only" for key in left.keys() ^ right.keys()]
    problems += [
        f"{what} {key}: {left[key]} and {right[key]}"
        for key in left
        if key in right and left[key] != right[key]
    ]
    return problems or [f"{what}: the order differs"]
