"""Entries as stored text: placement columns and payload JSON put together and taken apart.

An entry's JSON begins with its placement and goes on with its payload, whose first field is the
type. So a row becomes an entry by joining two pieces of text and decoding once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from harness.codec import JsonValue, decode, encode_str
from harness.entries import Entry, EntryPayload

ENTRIES = list[Entry]
_PLAIN = re.compile(r"[0-9a-f-]+")
# Any: type[T] cannot name "any JSON".
_ANY: Any = Any
_ENTRY: Any = Entry


def placement_json(seq: int, timestamp: int, entry_id: str, parent_id: str | None) -> str:
    """The fields before the payload, without braces."""
    parent = "null" if parent_id is None else _quoted(parent_id)
    return f'"seq":{seq},"timestamp":{timestamp},"id":{_quoted(entry_id)},"parentId":{parent}'


def _quoted(entry_id: str) -> str:
    """An id as JSON. Ids are UUIDs, which need no escaping; this runs twice for each row read."""
    return f'"{entry_id}"' if _PLAIN.fullmatch(entry_id) else encode_str(entry_id)


def entry_json(seq: int, timestamp: int, entry_id: str, parent_id: str | None, payload: str) -> str:
    """A stored entry's JSON from its columns; `payload` is the payload's JSON object."""
    return f"{{{placement_json(seq, timestamp, entry_id, parent_id)},{payload[1:]}"


def decode_entries(rows: Sequence[str]) -> list[Entry]:
    """Many entries at once, which costs less than one by one."""
    return decode(f"[{','.join(rows)}]", ENTRIES)


def decode_entry(row: str) -> Entry:
    """One entry from its JSON."""
    entry: Entry = decode(row, _ENTRY)
    return entry


def payload_json(payload: EntryPayload) -> str:
    """What is stored of a payload."""
    return encode_str(payload)


def decode_json(text: str | bytes) -> JsonValue:
    """Stored JSON whose shape is the application's own."""
    found: JsonValue = decode(text, _ANY)
    return found
