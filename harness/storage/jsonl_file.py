"""Reads a JSONL session file back into maps, and writes a snapshot of the maps as a new file (§1.7)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness.errors import InvalidArgument, SessionNotFound, StorageCorrupt
from harness.storage.jsonl_format import (
    Deleted,
    LineError,
    LineItem,
    TornLine,
    encode_record,
    header_line,
    parse_header,
    parse_line,
    transaction_line,
)
from harness.storage.memory import MemoryState
from harness.storage.memory_copy import restore
from harness.storage.metadata import SessionMetadata
from harness.storage.migrations import CURRENT_SCHEMA, Schema, migrate_maps
from harness.storage.publish import publish, staging
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.usage import UsageRow

_BUFFER = 1 << 20


@dataclass(slots=True)
class LiveBytes:
    """How many bytes of the file still say something that is so; the rest is dead."""

    values: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    lists: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    total: int = 0

    def add_fixed(self, size: int) -> None:
        """A record that lives for ever: header, entry, ledger row."""
        self.total += size

    def set_value(self, place: tuple[str, str], size: int) -> None:
        """A value record takes the place of the earlier one."""
        self.total += size - self.values.get(place, 0)
        self.values[place] = size

    def append(self, place: tuple[str, str], size: int) -> None:
        """One more element of a list."""
        self.total += size
        self.lists[place] = self.lists.get(place, 0) + size

    def delete(self, kind: Literal["value", "list"], place: tuple[str, str]) -> None:
        """A deletion, itself dead as soon as it is written."""
        sizes = self.values if kind == "value" else self.lists
        self.total -= sizes.pop(place, 0)

    def count(self, item: LineItem, size: int) -> None:
        """Account for a record of `size` bytes."""
        match item:
            case Deleted():
                self.delete(item.kind, (item.namespace, item.key))
            case ValueRecord(namespace=namespace, key=key):
                self.set_value((namespace, key), size)
            case ElementRecord(namespace=namespace, key=key):
                self.append((namespace, key), size)
            case _:
                self.add_fixed(size)


def read_jsonl_metadata(path: Path) -> SessionMetadata:
    """The metadata in a file's first line; raises `SessionNotFound`, `StorageCorrupt`, `NewerVersion`."""
    if not path.is_file():
        raise SessionNotFound(str(path))
    with path.open("rb") as file:
        try:
            metadata, _ = parse_header(file.readline())
        except (TornLine, LineError) as error:
            raise StorageCorrupt(f"{path}: line 1 at byte 0 {error}") from error
    return metadata


@dataclass(slots=True)
class LoadedFile:
    """A file read into maps. Bytes from `valid_bytes` on are a torn line.

    A file of a legacy format stays as it is until the first write, which replaces it and adds
    `first_write_adds` to the ledger.
    """

    metadata: SessionMetadata
    state: MemoryState
    live: LiveBytes
    file_bytes: int
    valid_bytes: int
    ends_with_newline: bool = True
    is_current: bool = True
    first_write_adds: UsageRow | None = None


def load(path: Path, schema: Schema = CURRENT_SCHEMA) -> LoadedFile:
    """Read a session file, its content converted to the version of `schema`; changes nothing.

    Raises `SessionNotFound`, `NewerVersion`, or `StorageCorrupt` with line and byte offset for
    damage anywhere but in the last line, and for a last line that is JSON but cannot follow.
    """
    if not path.is_file():
        raise SessionNotFound(str(path))
    with path.open("rb", buffering=_BUFFER) as file:
        size = os.fstat(file.fileno()).st_size
        reader = _Reader(path)
        offset = 0
        for number, line in enumerate(file, start=1):
            if offset >= size:
                break  # written after this reading began
            last = offset + len(line) >= size
            if not reader.take(line, number, offset, last=last):
                break
            offset += len(line)
        loaded = reader.finish(size, offset)
    metadata, state = migrate_maps(loaded.metadata, loaded.state, schema)
    if state is not loaded.state:
        loaded.metadata, loaded.state, loaded.is_current = metadata, state, False
    return loaded


class _Reader:
    """Replays lines in order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._metadata: SessionMetadata | None = None
        self._state = MemoryState()
        self._live = LiveBytes()
        self._last_seq = 0
        self._ends_with_newline = True

    def take(self, line: bytes, number: int, offset: int, *, last: bool) -> bool:
        """Apply one line; False when it is a torn last line."""
        try:
            if self._metadata is None:
                self._metadata, self._state.next_seq = parse_header(line)
                self._live.add_fixed(len(line))
            else:
                self._transaction(line)
        except TornLine as error:
            if last and self._metadata is not None:
                return False
            raise self._damage(number, offset, str(error)) from error
        except (LineError, StorageCorrupt) as error:
            raise self._damage(number, offset, str(error)) from error
        self._ends_with_newline = line.endswith(b"\n")
        return True

    def _transaction(self, line: bytes) -> None:
        items = parse_line(line)
        size = len(line) // len(items)
        for item in items:
            if item.seq <= self._last_seq:
                raise LineError(f"has sequence number {item.seq} after {self._last_seq}")
            self._last_seq = item.seq
            self._apply(item)
            self._live.count(item, size)

    def _apply(self, item: LineItem) -> None:
        state = self._state
        if not isinstance(item, Deleted):
            if not isinstance(item, UsageRow | ValueRecord | ElementRecord) and item.timestamp < 0:
                raise LineError("has a negative timestamp")
            restore(state, item)
            return
        if item.kind == "value":
            state.values.get(item.namespace, {}).pop(item.key, None)
        else:
            state.lists.pop((item.namespace, item.key), None)
        state.next_seq = max(state.next_seq, item.seq + 1)

    def _damage(self, number: int, offset: int, why: str) -> StorageCorrupt:
        return StorageCorrupt(f"{self._path}: line {number} at byte {offset} {why}")

    def finish(self, size: int, valid: int) -> LoadedFile:
        """What was read."""
        if self._metadata is None:
            raise self._damage(1, 0, "is missing: the file is empty")
        return LoadedFile(
            self._metadata, self._state, self._live, size, valid, self._ends_with_newline
        )


def write_file(
    path: Path,
    metadata: SessionMetadata,
    records: Iterable[Record],
    *,
    next_seq: int = 1,
    replace: bool = False,
) -> LiveBytes:
    """Write a session file that holds just these records, and put it in place when it is complete.

    `next_seq` is needed only when it is higher than the last record's successor.
    Raises `InvalidArgument` when a file is there already, unless `replace`.
    """
    if not replace and path.exists():
        raise InvalidArgument(f"{path} exists already")
    path.parent.mkdir(parents=True, exist_ok=True)
    live = LiveBytes()
    with staging(path) as staged:
        with staged.open("wb", buffering=_BUFFER) as file:
            header = header_line(metadata, next_seq)
            file.write(header)
            live.add_fixed(len(header))
            for record in records:
                line = transaction_line([encode_record(record).encode()])
                file.write(line)
                live.count(record, len(line))
        publish(staged, path, replace=replace)
    return live


def create_jsonl(path: Path, metadata: SessionMetadata) -> None:
    """Create the file of a new session that holds nothing."""
    write_file(path, metadata, ())
