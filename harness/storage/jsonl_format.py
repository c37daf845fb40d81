"""Format 4: how a session, its header and each committed write are spelled in a JSONL file (§1.7).

One line per transaction: an object for one write, an array for several. Field order is part of
the format's look; reading accepts any order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, assert_never, cast

import msgspec

from harness.codec import encode, encode_str
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
    payload_of,
)
from harness.errors import NewerVersion
from harness.storage.metadata import SessionMetadata
from harness.storage.prepared import (
    Prepared,
    PreparedElement,
    PreparedEntry,
    PreparedUsage,
    PreparedValue,
)
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.storage.rows import payload_json, placement_json
from harness.storage.writes import DeleteList, DeleteValue
from harness.usage import Usage, UsageRow

FORMAT = 4


class LineError(ValueError):
    """A line that says something no transaction can say."""


class TornLine(ValueError):
    """A line that is not JSON: cut off, or damaged."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """A deletion record: of a value, or of a whole list."""

    seq: int
    kind: Literal["value", "list"]
    namespace: str
    key: str


LineItem: TypeAlias = Record | Deleted


class Header(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True,
    tag_field="kind", tag="header",
):  # fmt: skip
    """The first line. `next_seq` is written by snapshot compaction, where the highest sequence
    number may have belonged to a record that is gone."""

    v: int
    id: str
    storage_version: int
    created_at: int
    cwd: str | None = None
    parent_session_id: str | None = None
    legacy_parent_session_path: str | None = None
    store_generation: int = 0
    # Any: application JSON; the harness never looks inside.
    metadata: dict[str, Any] | None = None
    next_seq: int = 1


class _Change(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value or list record as written."""

    kind: Literal["value", "list"]
    op: Literal["set", "delete", "append"]
    seq: int
    namespace: str
    key: str
    value: msgspec.Raw = msgspec.Raw()


class _UsageLine(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """A ledger record as written."""

    kind: Literal["usage"] = "usage"
    seq: int
    id: str
    entry_id: str | msgspec.UnsetType = msgspec.UNSET
    adjustment: bool
    usage: Usage
    details: Any | msgspec.UnsetType = msgspec.UNSET


# Writing


def header_line(metadata: SessionMetadata, next_seq: int = 1) -> bytes:
    """The header of a session's file."""
    # Spelled by hand, because the format begins with "v" and the encoder with the tag.
    fields = {
        "v": FORMAT,
        "kind": "header",
        "id": metadata.id,
        "storageVersion": metadata.storage_version,
        "createdAt": metadata.created_at,
        "cwd": metadata.cwd,
        "parentSessionId": metadata.parent_session_id,
        "legacyParentSessionPath": metadata.legacy_parent_session_path,
        "storeGeneration": metadata.store_generation or None,
        "metadata": metadata.metadata,
        "nextSeq": next_seq if next_seq > 1 else None,
    }
    return encode({name: field for name, field in fields.items() if field is not None}) + b"\n"


def transaction_line(pieces: Sequence[bytes]) -> bytes:
    """The line of one transaction from its encoded writes."""
    return pieces[0] + b"\n" if len(pieces) == 1 else b"[" + b",".join(pieces) + b"]\n"


def encode_write(write: Prepared, seq: int, timestamp: int) -> str:
    """One committed write."""
    match write:
        case PreparedEntry():
            placement = placement_json(seq, timestamp, write.id, write.parent_id)
            return f'{{"kind":"entry",{placement},{write.payload[1:]}'
        case PreparedUsage():
            entry = "" if write.entry_id is None else f'"entryId":{encode_str(write.entry_id)},'
            adjustment = "true" if write.adjustment else "false"
            details = "" if write.details is None else f',"details":{write.details}'
            return (
                f'{{"kind":"usage","seq":{seq},"id":{encode_str(write.id)},{entry}'
                f'"adjustment":{adjustment},"usage":{write.usage_json}{details}}}'
            )
        case PreparedValue():
            return (
                f'{_change("value", "set", seq, write.namespace, write.key)},"value":{write.json}}}'
            )
        case PreparedElement():
            return f'{_change("list", "append", seq, write.namespace, write.key)},"value":{write.json}}}'
        case DeleteValue():
            return _change("value", "delete", seq, write.namespace, write.key) + "}"
        case DeleteList():
            return _change("list", "delete", seq, write.namespace, write.key) + "}"
        case _:
            assert_never(write)


def _change(kind: str, op: str, seq: int, namespace: str, key: str) -> str:
    where = f'"namespace":{encode_str(namespace)},"key":{encode_str(key)}'
    return f'{{"kind":"{kind}","op":"{op}","seq":{seq},{where}'


def encode_record(record: Record) -> str:
    """One surviving record of a snapshot."""
    match record:
        case ValueRecord(seq=seq, namespace=namespace, key=key, json=text):
            return encode_write(PreparedValue(namespace, key, text), seq, 0)
        case ElementRecord(seq=seq, namespace=namespace, key=key, json=text):
            return encode_write(PreparedElement(namespace, key, text), seq, 0)
        case UsageRow():
            return encode_str(
                _UsageLine(
                    seq=record.seq,
                    id=record.id,
                    entry_id=record.entry_id,
                    adjustment=record.adjustment,
                    usage=record.usage,
                    details=record.details,
                )
            )
        case MessageEntry() | CompactionEntry() | BranchSummaryEntry() | CustomEntry():
            placement = placement_json(record.seq, record.timestamp, record.id, record.parent_id)
            return f'{{"kind":"entry",{placement},{payload_json(payload_of(record))[1:]}'
        case _:
            assert_never(record)


# Reading

_raws = msgspec.json.Decoder(list[msgspec.Raw])
_entries = msgspec.json.Decoder(Entry)
_changes = msgspec.json.Decoder(_Change)
_usages = msgspec.json.Decoder(_UsageLine)
_headers = msgspec.json.Decoder(Header)
_ENTRY_START = b'{"kind":"entry",'
_USAGE_START = b'{"kind":"usage",'
_CHANGE_STARTS = (b'{"kind":"value",', b'{"kind":"list",')


def parse_header(line: bytes) -> tuple[SessionMetadata, int]:
    """The metadata and the sequence high-water mark; raises `LineError`, `TornLine`, `NewerVersion`."""
    try:
        header = _headers.decode(line)
    except msgspec.ValidationError as error:
        raise LineError(f"is no format 4 header: {error}") from error
    except msgspec.DecodeError:
        header = _slow_header(line)
    if header.v > FORMAT:
        raise NewerVersion(header.v, FORMAT)
    if header.v < FORMAT:
        raise LineError(f"has format {header.v}, not {FORMAT}")
    metadata = SessionMetadata(
        id=header.id,
        created_at=header.created_at,
        storage_version=header.storage_version,
        cwd=header.cwd,
        parent_session_id=header.parent_session_id,
        legacy_parent_session_path=header.legacy_parent_session_path,
        store_generation=header.store_generation,
        metadata=header.metadata,
    )
    return metadata, header.next_seq


def _slow_header(line: bytes) -> Header:
    try:
        return msgspec.convert(json.loads(line), Header)
    except msgspec.ValidationError as error:
        raise LineError(f"is no format 4 header: {error}") from error
    except ValueError as error:
        raise TornLine("is not JSON") from error


def parse_line(line: bytes) -> list[LineItem]:
    """The writes of one transaction line; raises `TornLine` when it is not JSON, else `LineError`."""
    try:
        pieces = _raws.decode(line) if line[:1] == b"[" else [line]
        items = [_parse_piece(bytes(piece)) for piece in pieces]
    except msgspec.ValidationError as error:
        raise LineError(str(error)) from error
    except UnicodeDecodeError as error:
        raise LineError("is no UTF-8") from error
    except msgspec.DecodeError:
        items = _parse_slowly(line)
    if not items:
        raise LineError("is an empty transaction")
    return items


def _parse_piece(piece: bytes) -> LineItem:
    if piece.startswith(_ENTRY_START):
        return _entries.decode(b"{" + piece[len(_ENTRY_START) :])
    if piece.startswith(_CHANGE_STARTS):
        change = _changes.decode(piece)
        return _changed(change, bytes(change.value).decode())
    if piece.startswith(_USAGE_START):
        return _ledger(_usages.decode(piece))
    # Another writer of the format may order fields differently.
    return _from_fields(msgspec.json.decode(piece))


def _parse_slowly(line: bytes) -> list[LineItem]:
    """For lines with escaped lone surrogates, which only the standard library decodes."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise TornLine("is not JSON") from error
    pieces = cast("list[object]", found) if isinstance(found, list) else [found]
    try:
        return [_from_fields(piece) for piece in pieces]
    except msgspec.ValidationError as error:
        raise LineError(str(error)) from error


def _from_fields(found: object) -> LineItem:
    if not isinstance(found, dict):
        raise LineError("holds something that is no record")
    fields = cast("dict[str, Any]", found)
    match fields.get("kind"):
        case "entry":
            rest = {name: field for name, field in fields.items() if name != "kind"}
            # The union is a value that type[T] cannot name.
            return cast("Entry", msgspec.convert(rest, Entry))
        case "usage":
            return _ledger(msgspec.convert(fields, _UsageLine))
        case "value" | "list":
            has_value = "value" in fields
            text = encode_str(fields["value"]) if has_value else ""
            plain = {name: field for name, field in fields.items() if name != "value"}
            return _changed(msgspec.convert(plain, _Change), text)
        case other:
            raise LineError(f"holds a record of unknown kind {other!r}")


def _changed(change: _Change, value: str) -> LineItem:
    match (change.kind, change.op):
        case ("value", "set") if value:
            return ValueRecord(change.seq, change.namespace, change.key, value)
        case ("list", "append") if value:
            return ElementRecord(change.seq, change.namespace, change.key, value)
        case ("value" | "list" as kind, "delete") if not value:
            return Deleted(change.seq, kind, change.namespace, change.key)
        case _:
            raise LineError(f"holds a {change.kind} record that cannot be: {change.op}")


def _ledger(line: _UsageLine) -> UsageRow:
    return UsageRow(
        id=line.id,
        seq=line.seq,
        usage=line.usage,
        adjustment=line.adjustment,
        entry_id=line.entry_id,
        details=line.details,
    )
