"""The write vocabulary of a transaction, and what a transaction's writes say about it (§1.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from harness.entries import NewEntry
from harness.storage.address import Value, ValueList
from harness.usage import NewUsageRow

T = TypeVar("T")

FRAME_NAMESPACE = "pi.pending.assistant_frame"
CHECKPOINT_NAMESPACE = "pi.pending.tool_output"


@dataclass(frozen=True, slots=True)
class InsertEntry:
    """Insert one complete entry under an id that does not exist yet."""

    entry: NewEntry


@dataclass(frozen=True, slots=True)
class InsertUsage:
    """Append one ledger row."""

    row: NewUsageRow


@dataclass(frozen=True, slots=True)
class SetValue:
    """Replace the value at an address."""

    namespace: str
    key: str
    value: object


@dataclass(frozen=True, slots=True)
class DeleteValue:
    """Remove the value at an address; nothing happens when it is absent."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class AppendList:
    """Append one immutable element to a list."""

    namespace: str
    key: str
    value: object


@dataclass(frozen=True, slots=True)
class DeleteList:
    """Remove every element of a list; nothing happens when it is absent."""

    namespace: str
    key: str


Write: TypeAlias = InsertEntry | InsertUsage | SetValue | DeleteValue | AppendList | DeleteList


def insert_entry(entry: NewEntry) -> Write:
    """Insert an entry."""
    return InsertEntry(entry)


def insert_usage(row: NewUsageRow) -> Write:
    """Append a ledger row."""
    return InsertUsage(row)


def set_value(address: Value[T], next_value: T) -> Write:
    """Replace the value at `address`."""
    return SetValue(address.namespace, address.key, next_value)


def delete_value(address: Value[T]) -> Write:
    """Remove the value at `address`."""
    return DeleteValue(address.namespace, address.key)


def append_list(address: ValueList[T], element: T) -> Write:
    """Append `element` to the list at `address`."""
    return AppendList(address.namespace, address.key, element)


def delete_list(address: ValueList[T]) -> Write:
    """Remove the whole list at `address`."""
    return DeleteList(address.namespace, address.key)


def is_stream(writes: Sequence[Write]) -> bool:
    """Whether these are frames of a stream and nothing else. Nobody waits for one of them (§3.7), so a
    backend may answer before it has written them down."""
    for write in writes:
        if not isinstance(write, AppendList) or write.namespace != FRAME_NAMESPACE:
            return False
    return True


def is_auxiliary(writes: Sequence[Write]) -> bool:
    """Whether losing this transaction in a crash of the machine is legal.

    Stream frames and tool checkpoints never select a restart point (§3.7, §3.8), so a backend
    may commit them without waiting for the disk.
    """
    for write in writes:
        match write:
            case AppendList(namespace=namespace) if namespace == FRAME_NAMESPACE:
                continue
            case SetValue(namespace=namespace) if namespace == CHECKPOINT_NAMESPACE:
                continue
            case _:
                return False
    return True
