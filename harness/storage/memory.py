"""The Memory backend: live maps, nothing else (§1.7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, assert_never

from harness.clock import Clock
from harness.context import Context
from harness.entries import (
    Entry,
    EntryStructure,
    custom_type_of,
    entry_type,
    place,
    structure_of,
)
from harness.errors import StorageClosed, StorageCorrupt
from harness.storage.address import Value, ValueList
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    EntryScan,
    ListElement,
    ListRead,
    StoredValue,
    UsageScan,
    check_limit,
    page_limit,
)
from harness.storage.writes import (
    AppendList,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
)
from harness.usage import EMPTY_STATS, SessionStats, UsageRow, add_usage, stamp_usage

T = TypeVar("T")


class MemoryState:
    """The maps of one session. Survives the storage instance, so a session can be reopened."""

    __slots__ = ("entries", "lists", "next_seq", "order", "stats", "usage", "values")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.order: list[Entry] = []
        self.usage: dict[str, UsageRow] = {}
        # Any: addresses erase their value type here; typed access happens through addresses.
        self.values: dict[str, dict[str, tuple[int, Any]]] = {}
        self.lists: dict[tuple[str, str], list[ListElement[Any]]] = {}
        self.stats: SessionStats = EMPTY_STATS
        self.next_seq = 1

    def check(self, writes: Sequence[Write]) -> None:
        """Raise `StorageCorrupt` if these writes break an invariant; nothing has changed then."""
        new_ids: set[str] = set()
        new_entries: set[str] = set()
        for write in writes:
            match write:
                case InsertEntry(entry=entry):
                    self._check_new(entry.id, new_ids)
                    parent = entry.parent_id
                    if not (parent is None or parent in self.entries or parent in new_entries):
                        raise StorageCorrupt(f"entry {entry.id} names missing parent {parent}")
                    new_ids.add(entry.id)
                    new_entries.add(entry.id)
                case InsertUsage(row=row):
                    self._check_new(row.id, new_ids)
                    new_ids.add(row.id)
                case SetValue() | DeleteValue() | AppendList() | DeleteList():
                    continue
                case _:
                    assert_never(write)

    def _check_new(self, new_id: str, new_ids: set[str]) -> None:
        if new_id in self.entries or new_id in self.usage or new_id in new_ids:
            raise StorageCorrupt(f"id {new_id} is written twice")

    def apply(self, writes: Sequence[Write], timestamp: int) -> CommitResult:
        """Apply checked writes in order."""
        first = self.next_seq
        for seq, write in enumerate(writes, start=first):
            self.apply_one(write, seq, timestamp)
        self.next_seq = first + len(writes)
        return CommitResult(first, tuple(range(first, self.next_seq)), timestamp)

    def apply_one(self, write: Write, seq: int, timestamp: int) -> None:
        """Apply one write under an assigned sequence number."""
        match write:
            case InsertEntry(entry=new):
                entry = place(
                    new.payload, id=new.id, parent_id=new.parent_id, seq=seq, timestamp=timestamp
                )
                self.entries[new.id] = entry
                self.order.append(entry)
                if entry_type(entry) == "message":
                    self.stats = SessionStats(
                        message_count=self.stats.message_count + 1, usage=self.stats.usage
                    )
            case InsertUsage(row=row):
                self.usage[row.id] = stamp_usage(row, seq)
                self.stats = SessionStats(
                    message_count=self.stats.message_count,
                    usage=add_usage(self.stats.usage, row.usage),
                )
            case SetValue(namespace=namespace, key=key, value=stored):
                self.values.setdefault(namespace, {})[key] = (seq, stored)
            case DeleteValue(namespace=namespace, key=key):
                self.values.get(namespace, {}).pop(key, None)
            case AppendList(namespace=namespace, key=key, value=element):
                self.lists.setdefault((namespace, key), []).append(ListElement(seq, element))
            case DeleteList(namespace=namespace, key=key):
                self.lists.pop((namespace, key), None)
            case _:
                assert_never(write)

    def branch(self, query: BranchScan) -> list[Entry]:
        """The walk of §2.5 over parent pointers."""
        check_limit(query.limit)
        path: list[Entry] = []
        next_id: str | None = query.start
        while next_id is not None:
            entry = self.entries.get(next_id)
            if entry is None:
                raise StorageCorrupt(f"branch names missing entry {next_id}")
            path.append(entry)
            # Newest first is the walking order, so a match can end the walk itself.
            if query.order == "newestFirst" and _stops(query, entry):
                break
            next_id = entry.parent_id
        if query.order == "oldestFirst":
            path.reverse()
            for index, entry in enumerate(path):
                if _stops(query, entry):
                    del path[index + 1 :]
                    break
        found = [entry for entry in path if _selected(query, entry)]
        return found if query.limit is None else found[: query.limit]


def _stops(query: BranchScan, entry: Entry) -> bool:
    return entry.id == query.stop_at_id or (
        query.stop_at_type is not None and entry_type(entry) == query.stop_at_type
    )


def _selected(query: BranchScan, entry: Entry) -> bool:
    if query.type is not None and entry_type(entry) != query.type:
        return False
    if query.custom_type is not None and custom_type_of(entry) != query.custom_type:
        return False
    if query.cursor is None:
        return True
    return entry.seq < query.cursor if query.order == "newestFirst" else entry.seq > query.cursor


class MemoryStorage:
    """A session in this process's memory; gone with the process."""

    def __init__(self, clock: Clock, state: MemoryState | None = None) -> None:
        self._clock = clock
        self._state = state if state is not None else MemoryState()
        self._closed = False

    @property
    def state(self) -> MemoryState:
        """The maps, for repositories that fork, reopen or inspect a session."""
        return self._state

    def _open(self) -> MemoryState:
        if self._closed:
            raise StorageClosed
        return self._state

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        state = self._open()
        state.check(writes)
        return state.apply(writes, self._clock.now_ms())

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        entries = self._open().entries
        return {entry_id: entries[entry_id] for entry_id in ids if entry_id in entries}

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        found = self._open().values.get(address.namespace, {}).get(address.key)
        return None if found is None else StoredValue(address, found[1], found[0])

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        namespace = self._open().values.get(prefix.namespace, {})
        return [
            StoredValue(
                Value(prefix.type, prefix.namespace, key), namespace[key][1], namespace[key][0]
            )
            for key in sorted(key for key in namespace if key.startswith(prefix.key))
        ]

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        state = self._open()
        read = options or ListRead()
        limit = page_limit(read.limit)
        elements: list[ListElement[T]] = state.lists.get((address.namespace, address.key), [])
        if read.order == "asc":
            after = [e for e in elements if read.cursor is None or e.seq > read.cursor]
        else:
            after = [e for e in reversed(elements) if read.cursor is None or e.seq < read.cursor]
        return after[:limit]

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        return self._open().branch(query)

    async def scan_branch_structure(
        self, query: BranchScan, context: Context
    ) -> list[EntryStructure]:
        return [structure_of(entry) for entry in self._open().branch(query)]

    async def scan_entries(self, query: EntryScan, context: Context) -> list[Entry]:
        state = self._open()
        check_limit(query.limit)
        ordered = state.order if query.order == "asc" else reversed(state.order)
        found: list[Entry] = []
        for entry in ordered:
            if query.limit is not None and len(found) >= query.limit:
                break
            if (
                (query.type is None or entry_type(entry) == query.type)
                and (query.custom_type is None or custom_type_of(entry) == query.custom_type)
                and (query.from_seq is None or entry.seq >= query.from_seq)
                and (query.to_seq is None or entry.seq <= query.to_seq)
            ):
                found.append(entry)
        return found

    async def scan_usage(self, query: UsageScan, context: Context) -> list[UsageRow]:
        state = self._open()
        check_limit(query.limit)
        found = [
            row
            for row in state.usage.values()
            if (query.from_seq is None or row.seq >= query.from_seq)
            and (query.to_seq is None or row.seq <= query.to_seq)
        ]
        if query.order == "desc":
            found.reverse()
        return found if query.limit is None else found[: query.limit]

    async def get_stats(self, context: Context) -> SessionStats:
        return self._open().stats

    async def close(self, context: Context) -> None:
        self._closed = True
