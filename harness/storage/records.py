"""Stored content in transit: what a copy, a snapshot file or an export consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from harness.codec import decode
from harness.entries import Entry
from harness.storage.address import Value
from harness.usage import UsageRow


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """A current value with the sequence number of the write that set it; `json` is its text."""

    seq: int
    namespace: str
    key: str
    json: str


@dataclass(frozen=True, slots=True)
class ElementRecord:
    """A list element with its own sequence number, which is its cursor; `json` is its text."""

    seq: int
    namespace: str
    key: str
    json: str


T = TypeVar("T")


def value_of(record: ValueRecord, address: Value[T]) -> T:
    """The record's value with the type of its address."""
    # Any: an address's type may be a union, which type[T] cannot name.
    type_: Any = address.type
    found: T = decode(record.json, type_)
    return found


Record: TypeAlias = Entry | UsageRow | ValueRecord | ElementRecord
