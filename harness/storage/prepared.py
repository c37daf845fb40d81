"""Writes made ready for a backend that stores text: everything that can fail happens before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from harness.codec import encode_str
from harness.entries import EntryType, custom_type_of, payload_type
from harness.storage.rows import payload_json
from harness.storage.writes import (
    AppendList,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from harness.usage import Usage


@dataclass(frozen=True, slots=True)
class PreparedEntry:
    """An entry insert with its payload as text."""

    id: str
    parent_id: str | None
    type: EntryType
    custom_type: str | None
    payload: str


@dataclass(frozen=True, slots=True)
class PreparedUsage:
    """A ledger insert with its documents as text."""

    id: str
    entry_id: str | None
    adjustment: bool
    usage: Usage
    usage_json: str
    details: str | None


@dataclass(frozen=True, slots=True)
class PreparedValue:
    """A value to set, as text."""

    namespace: str
    key: str
    json: str


@dataclass(frozen=True, slots=True)
class PreparedElement:
    """A list element to append, as text."""

    namespace: str
    key: str
    json: str


Prepared: TypeAlias = (
    PreparedEntry | PreparedUsage | PreparedValue | PreparedElement | DeleteValue | DeleteList
)


def prepare(writes: Sequence[Write]) -> list[Prepared]:
    """The writes with their content encoded, in order; raises what the encoder raises."""
    return [_prepare(write) for write in writes]


def _prepare(write: Write) -> Prepared:
    match write:
        case InsertEntry(entry=entry):
            payload = entry.payload
            return PreparedEntry(
                entry.id,
                entry.parent_id,
                payload_type(payload),
                custom_type_of(payload),
                payload_json(payload),
            )
        case InsertUsage(row=row):
            return PreparedUsage(
                row.id,
                row.entry_id,
                row.adjustment,
                row.usage,
                encode_str(row.usage),
                None if row.details is None else encode_str(row.details),
            )
        case SetValue(namespace=namespace, key=key, value=stored):
            return PreparedValue(namespace, key, encode_str(stored))
        case AppendList(namespace=namespace, key=key, value=element):
            return PreparedElement(namespace, key, encode_str(element))
        case DeleteValue() | DeleteList():
            return write
        case _:
            assert_never(write)
