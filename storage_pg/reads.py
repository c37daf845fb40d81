"""The bounded queries of the storage protocol, for whoever can run a named statement."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from harness.codec import decode
from harness.context import Context
from harness.entries import Entry, EntryStructure
from harness.errors import StorageCorrupt
from harness.storage.address import Value, ValueList
from harness.storage.protocol import (
    BranchScan,
    EntryScan,
    ListElement,
    ListRead,
    StoredValue,
    UsageScan,
    check_limit,
    page_limit,
)
from harness.storage.rows import decode_entries, entry_json
from harness.usage import EMPTY_STATS, SessionStats, Usage, UsageRow

T = TypeVar("T")

# Any type: rows are tuples of what the statement selects.
Row = tuple[object, ...]


class Fetch(Protocol):
    """Runs a named statement and returns its rows; raises storage errors."""

    async def __call__(self, query: str, parameters: Sequence[object]) -> list[Row]: ...


class SessionReads:
    """Reads of one session of one tenant."""

    def __init__(self, tenant_id: str, session_id: str, fetch: Fetch) -> None:
        self._who = (tenant_id, session_id)
        self._fetch = fetch

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        """The entries that exist among `ids`."""
        possible = [entry_id for entry_id in ids if is_uuid(entry_id)]
        if not possible:
            return {}
        rows = await self._fetch("get_entries", (*self._who, possible))
        return {entry.id: entry for entry in _entries(rows)}

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """The current value, or None."""
        rows = await self._fetch("get_value", (*self._who, address.namespace, address.key))
        if not rows:
            return None
        seq, text = rows[0]
        return StoredValue(address, decode(_text(text), address.type), _number(seq))

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        """Values of the namespace whose key starts with the bound key, by code point."""
        bounds = (prefix.key, key_after(prefix.key))
        rows = await self._fetch("scan_values", (*self._who, prefix.namespace, *bounds))
        return [
            StoredValue(
                Value(prefix.type, prefix.namespace, _text(key)),
                decode(_text(text), prefix.type),
                _number(seq),
            )
            for key, seq, text in rows
        ]

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """One page of a list."""
        read = options or ListRead()
        page = page_limit(read.limit)
        rows = await self._fetch(
            "read_list",
            (*self._who, address.namespace, address.key, read.cursor, read.order == "desc", page),
        )
        return [ListElement(_number(seq), decode(_text(text), address.type)) for seq, text in rows]

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        """Entries on the path from `start` to the root."""
        rows = await self._scan_branch(query, with_payload=True)
        return _entries([(*row[:4], row[6]) for row in rows])

    async def scan_branch_structure(
        self, query: BranchScan, context: Context
    ) -> list[EntryStructure]:
        """The same walk without payloads."""
        rows = await self._scan_branch(query, with_payload=False)
        return [
            EntryStructure(
                id=_text(entry_id),
                parent_id=None if parent is None else _text(parent),
                seq=_number(seq),
                timestamp=_number(stamp),
                type=kind,  # pyright: ignore[reportArgumentType]  # only entry types are stored
                custom_type=None if custom is None else _text(custom),
            )
            for entry_id, parent, seq, stamp, kind, custom, _ in rows
        ]

    async def scan_entries(self, query: EntryScan, context: Context) -> list[Entry]:
        """All entries of the session by sequence."""
        check_limit(query.limit)
        bounds = (query.from_seq, query.to_seq, query.order == "desc", query.limit)
        return _entries(
            await self._fetch("scan_entries", (*self._who, query.type, query.custom_type, *bounds))
        )

    async def scan_usage(self, query: UsageScan, context: Context) -> list[UsageRow]:
        """Ledger rows by sequence."""
        check_limit(query.limit)
        bounds = (query.from_seq, query.to_seq, query.order == "desc", query.limit)
        rows = await self._fetch("scan_usage", (*self._who, *bounds))
        return [_usage_row(row) for row in rows]

    async def get_stats(self, context: Context) -> SessionStats:
        """The maintained totals."""
        rows = await self._fetch("get_stats", self._who)
        if not rows:
            return EMPTY_STATS
        messages, usage = rows[0]
        return SessionStats(message_count=_number(messages), usage=decode(_text(usage), Usage))

    async def _scan_branch(self, query: BranchScan, *, with_payload: bool) -> list[Row]:
        check_limit(query.limit)
        if not is_uuid(query.start):
            raise StorageCorrupt(f"branch names missing entry {query.start}")
        stop = query.stop_at_id if query.stop_at_id and is_uuid(query.stop_at_id) else None
        return await self._fetch(
            "scan_branch",
            (
                *self._who,
                query.start,
                query.stop_at_type,
                stop,
                query.type,
                query.custom_type,
                query.order == "newestFirst",
                query.cursor,
                query.limit,
                with_payload,
            ),
        )


def key_after(prefix: str) -> str | None:
    """The smallest key above every key that starts with `prefix`, None when there is none."""
    for index in range(len(prefix) - 1, -1, -1):
        point = ord(prefix[index]) + 1
        if point == 0xD800:  # surrogates are no characters of their own
            point = 0xE000
        if point <= 0x10FFFF:
            return prefix[:index] + chr(point)
    return None


def is_uuid(text: str) -> bool:
    """Whether the text is a UUID in any spelling; nothing else can name an entry here."""
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


def _entries(rows: Sequence[Row]) -> list[Entry]:
    return decode_entries(
        [
            entry_json(
                _number(seq),
                _number(stamp),
                _text(entry_id),
                None if parent is None else _text(parent),
                _text(payload),
            )
            for entry_id, parent, seq, stamp, payload in rows
        ]
    )


def _usage_row(row: Row) -> UsageRow:
    row_id, seq, entry_id, adjustment, usage, details = row
    fields = [
        f'"id":"{row_id}"',
        f'"seq":{seq}',
        f'"usage":{usage}',
        f'"adjustment":{"true" if adjustment else "false"}',
    ]
    if entry_id is not None:
        fields.append(f'"entryId":"{entry_id}"')
    if details is not None:
        fields.append(f'"details":{details}')
    return decode(f"{{{','.join(fields)}}}", UsageRow)


def _text(column: object) -> str:
    assert isinstance(column, str)
    return column


def _number(column: object) -> int:
    assert isinstance(column, int)
    return column
