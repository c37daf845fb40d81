"""A session as an exchange file: JSONL format 4 whose header says how much follows and its digest.

An export is an ordinary session file: any reader of the format takes it, and what later writers
append to it does not disturb the check, which covers the lines that the header counted. Everything
here blocks and runs on a thread; content is never held in memory as a whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, assert_never

import msgspec

from harness.codec import decode, encode
from harness.entries import BranchSummaryEntry, CompactionEntry, CustomEntry, Entry, MessageEntry
from harness.errors import InvalidArgument, NewerVersion, StorageCorrupt, StorageError
from harness.operation import values
from harness.session.repo_files import load_any
from harness.session.session import MAIN_LANE
from harness.storage.jsonl_format import (
    Deleted,
    LineError,
    TornLine,
    encode_record,
    header_line,
    parse_header,
    parse_line,
    transaction_line,
)
from harness.storage.memory_copy import MemorySnapshot, restore
from harness.storage.metadata import STORAGE_VERSION, SessionMetadata
from harness.storage.records import ElementRecord, Record, ValueRecord, value_of
from harness.storage.snapshot import Snapshot
from harness.usage import UsageRow

OpenOperations: TypeAlias = Literal["refuse", "keep"]

MAX_LINE = 1 << 28
_BUFFER = 1 << 20


class TransferDamaged(StorageError):
    """What arrived is not what was sent: records are missing or differ. Nothing was made of it."""


class TargetDiffers(TransferDamaged):
    """The target does not hold what it was given; it was removed again."""


class Summary(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many records a session has, and the SHA-256 (hex) of their lines in format 4."""

    records: int
    sha256: str


class _ExportHeader(msgspec.Struct):
    """What an export's header says beyond the format."""

    export: Summary | None = None


@dataclass(slots=True)
class Tally:
    """Counts and digests records as they pass."""

    records: int = 0
    last_seq: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)  # Any: hashlib names no type for it

    def add(self, line: bytes) -> None:
        """One record's line, with its newline."""
        self.records += 1
        self._digest.update(line)

    def counting(self, records: Iterable[Record]) -> Iterator[Record]:
        """The same records, counted."""
        for record in records:
            self.add(record_line(record))
            self.last_seq = record.seq
            yield record

    def summary(self) -> Summary:
        """What passed so far."""
        return Summary(records=self.records, sha256=self._digest.hexdigest())


def record_line(record: Record) -> bytes:
    """A record's line in an export."""
    return transaction_line([encode_record(record).encode()])


def summarize(snapshot: Snapshot) -> Summary:
    """What an export of this content would say of itself."""
    tally = Tally()
    for record in snapshot.records():
        tally.add(record_line(record))
    return tally.summary()


def write_lines(file: BinaryIO, records: Iterable[Record]) -> Summary:
    """Write records, one a line."""
    tally = Tally()
    for record in records:
        line = record_line(record)
        tally.add(line)
        file.write(line)
    return tally.summary()


def export_header(metadata: SessionMetadata, next_seq: int, summary: Summary) -> bytes:
    """The first line of an export."""
    fields: dict[str, Any] = decode(header_line(metadata, next_seq), dict[str, Any])
    return encode({**fields, "export": summary}) + b"\n"


@dataclass(slots=True)
class Incoming:
    """A file that is being read: what it says of itself, and its records, once, in order.

    The records are those that are live, checked: numbers rise, ids are new, parents known, a main
    lane is there. They raise `StorageCorrupt`, and `InvalidArgument` for an open operation that is to
    be refused.
    """

    metadata: SessionMetadata
    next_seq: int
    records: Iterator[Record]
    _file: BinaryIO | None = None

    @property
    def by_line(self) -> bool:
        """Whether each record is a line of its own, below the header."""
        return self._file is not None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()


def open_incoming(path: Path, operations: OpenOperations) -> Incoming:
    """Read an export, a session file with its history, or a legacy session.

    An export is compared with what its header announced before anything is taken from it. Raises
    `TransferDamaged`, `StorageCorrupt` with line and byte offset, `NewerVersion`.
    """
    file = path.open("rb", buffering=_BUFFER)
    try:
        incoming = _incoming(path, file)
        if incoming.metadata.storage_version > STORAGE_VERSION:
            raise NewerVersion(incoming.metadata.storage_version, STORAGE_VERSION)
    except StorageCorrupt as error:
        file.close()
        # It was sent from elsewhere: its place here says nothing to anybody.
        raise StorageCorrupt(str(error).replace(str(path), "the file")) from error
    except RecursionError as error:
        file.close()
        raise StorageCorrupt("the file: something in it is nested too deeply") from error
    except BaseException:
        file.close()
        raise
    incoming.records = _Check(operations, incoming.by_line).checked(incoming.records)
    return incoming


def _incoming(path: Path, file: BinaryIO) -> Incoming:
    first = file.readline(MAX_LINE)
    announced = _announced(first)
    if announced is not None and not _goes_on_after(file, announced):
        metadata, next_seq = parse_header(first)
        if metadata.storage_version == STORAGE_VERSION:
            file.seek(len(first))
            return Incoming(metadata, next_seq, read_lines(file, len(first)), file)
    file.close()
    loaded = load_any(path)
    if loaded.first_write_adds is not None:
        restore(loaded.state, loaded.first_write_adds)
    snapshot = MemorySnapshot(loaded.state)
    return Incoming(loaded.metadata, snapshot.next_seq, snapshot.records())


def _announced(first: bytes) -> Summary | None:
    """What an export's header announces; None for any other file, whose reader finds what is wrong."""
    try:
        parse_header(first)
        return msgspec.json.decode(first, type=_ExportHeader).export
    except (msgspec.MsgspecError, LineError, TornLine):
        return None


def _goes_on_after(file: BinaryIO, announced: Summary) -> bool:
    """Whether a later writer appended to the file; raises `TransferDamaged` unless it begins right."""
    tally = Tally()
    while tally.records < announced.records:
        line = file.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise TransferDamaged(
                f"the file ends after {tally.records} of {announced.records} records"
            )
        tally.add(line)
    if tally.summary() != announced:
        raise TransferDamaged("the records are not those that the header announced")
    return file.read(1) != b""


def read_lines(file: BinaryIO, offset: int = 0) -> Iterator[Record]:
    """Records, one a line, below a header of `offset` bytes; raises `StorageCorrupt`."""
    for number, line in enumerate(file, start=2):
        yield _record(line, number, offset)
        offset += len(line)


def _record(line: bytes, number: int, offset: int) -> Record:
    try:
        found = parse_line(line)
    except (LineError, TornLine) as error:
        raise StorageCorrupt(f"the file: line {number} at byte {offset} {error}") from error
    if len(found) != 1 or isinstance(found[0], Deleted):
        raise StorageCorrupt(f"the file: line {number} at byte {offset} is no line of an export")
    return found[0]


# What the harness keeps under names of its own, and lists.
_KNOWN: dict[str, Any] = {
    address.namespace: address.type
    for address in (
        values.lane_config(""),
        values.lane_last_result(""),
        values.operation_meta(""),
        values.operation_state(""),
        values.operation_preparation_prefix(""),
        values.pending_entry(""),
        values.pending_tool_output_prefix(""),
        values.pending_assistant_frames("", ""),
        values.SESSION_NAME,
        values.entry_label(""),
    )
}


class _Check:
    """What must hold of a session's records together, whoever wrote them."""

    def __init__(self, operations: OpenOperations, by_line: bool) -> None:
        self._operations = operations
        self._by_line = by_line
        self._last_seq = 0
        self._entries: set[str] = set()
        self._usage: set[str] = set()
        self._leaves: dict[str, str | None] = {}
        self._states: set[str] = set()
        self._current: set[str] = set()
        self._open: set[str] = set()
        self._places: set[tuple[str, str]] = set()

    def checked(self, records: Iterable[Record]) -> Iterator[Record]:
        """The records as they pass; raises at the first that cannot be, and says which it is."""
        passed = 0
        try:
            for record in records:
                self._take(record)
                passed += 1
                yield record
        except StorageCorrupt as error:
            if str(error).startswith("the file"):
                raise
            raise StorageCorrupt(f"the file: {self._after(passed)} {error}") from error
        except RecursionError as error:
            raise StorageCorrupt(f"the file: {self._after(passed)} is nested too deeply") from error
        self._whole()

    def _after(self, passed: int) -> str:
        """The name of the record that follows so many."""
        return f"line {passed + 2}" if self._by_line else f"record {passed + 1}"

    def _whole(self) -> None:
        for lane, leaf in self._leaves.items():
            if leaf is not None and leaf not in self._entries:
                raise StorageCorrupt(f"the file: lane {lane} stands at the missing entry {leaf}")
        if MAIN_LANE not in self._leaves or self._leaves.keys() != self._states:
            raise StorageCorrupt("the file holds no session: its lanes are not complete")
        if self._open != self._current:
            raise StorageCorrupt("the file: its open operations are not those that its lanes name")

    def _take(self, record: Record) -> None:
        if record.seq <= self._last_seq:
            raise StorageCorrupt(f"has sequence number {record.seq} after {self._last_seq}")
        self._last_seq = record.seq
        match record:
            case MessageEntry() | CompactionEntry() | BranchSummaryEntry() | CustomEntry():
                self._entry(record)
            case UsageRow():
                self._new_id(record.id)
                self._usage.add(record.id)
            case ValueRecord():
                self._value(record)
            case ElementRecord(namespace=namespace, key=key, json=text):
                _check_place(namespace, key)
                _check_shape(namespace, text)
            case _:
                assert_never(record)

    def _entry(self, entry: Entry) -> None:
        self._new_id(entry.id)
        if entry.parent_id is not None and entry.parent_id not in self._entries:
            raise StorageCorrupt(
                f"has entry {entry.id}, which names missing parent {entry.parent_id}"
            )
        if entry.timestamp < 0:
            raise StorageCorrupt(f"has entry {entry.id}, which has a negative timestamp")
        self._entries.add(entry.id)

    def _new_id(self, found: str) -> None:
        if found in self._entries or found in self._usage:
            raise StorageCorrupt(f"has id {found}, which is in the file twice")

    def _value(self, record: ValueRecord) -> None:
        _check_place(record.namespace, record.key)
        place = (record.namespace, record.key)
        if place in self._places:
            raise StorageCorrupt(f"has {record.namespace} {record.key}, which is in the file twice")
        self._places.add(place)
        if record.namespace == values.lane_leaf_inventory_prefix().namespace:
            self._leaves[record.key] = value_of(record, values.lane_leaf(record.key))
        elif record.namespace == values.lane_state("").namespace:
            self._states.add(record.key)
            state = value_of(record, values.lane_state(record.key))
            if state.current_operation_id is not None:
                self._current.add(state.current_operation_id)
                self._may_be_open(record.key, state.current_operation_id)
        else:
            _check_shape(record.namespace, record.json)
            if record.namespace == values.operation_state("").namespace:
                self._open.add(record.key)

    def _may_be_open(self, lane: str, operation: str) -> None:
        if self._operations == "refuse":
            raise InvalidArgument(
                f"lane {lane} has the open operation {operation}: let it end first, or keep it when "
                "nothing drives the original any more"
            )


def _check_shape(namespace: str, text: str) -> None:
    type_ = _KNOWN.get(namespace)
    if type_ is not None:
        decode(text, type_)


def _check_place(namespace: str, key: str) -> None:
    if not namespace or "\x00" in namespace or "\x00" in key:
        raise StorageCorrupt(f"has the address {namespace!r} {key!r}, which no value can have")
