"""A lane-bound view of the session tree: finders, values, and writes that place at once (§5.3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from harness.codec import JsonValue, foreign_json
from harness.context import Context
from harness.entries import CustomPayload, Entry, EntryPayload, EntryType, MessagePayload, NewEntry
from harness.errors import InvalidArgument
from harness.messages import AgentMessage, AssistantMessage
from harness.operation import values
from harness.session.session import Session, SessionMutator
from harness.storage.address import Value, ValueList
from harness.storage.protocol import (
    BranchOrder,
    BranchScan,
    EntryScan,
    ListElement,
    ListRead,
    SeqOrder,
    StoredValue,
    check_limit,
)
from harness.storage.writes import (
    Write,
    append_list,
    delete_list,
    delete_value,
    insert_entry,
    set_value,
)
from harness.usage import SessionStats

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EntryQuery:
    """A session-wide query: filter, then the exclusive cursor, then the limit."""

    type: EntryType | None = None
    custom_type: str | None = None
    order: SeqOrder = "desc"
    limit: int | None = None
    cursor: int | None = None


@dataclass(frozen=True, slots=True)
class BranchQuery:
    """A branch query; without `start` it begins at the lane's leaf (§2.5)."""

    start: str | None = None
    stop_at_type: EntryType | None = None
    stop_at_id: str | None = None
    type: EntryType | None = None
    custom_type: str | None = None
    order: BranchOrder = "newestFirst"
    limit: int | None = None
    cursor: int | None = None


class TreeReads:
    """The reading half of a session tree view."""

    def __init__(self, session: Session, lane: str) -> None:
        self._session = session
        self._lane = lane

    @property
    def lane(self) -> str:
        """The lane this view is bound to."""
        return self._lane

    async def get_leaf_id(self, context: Context) -> str | None:
        """The lane's leaf; None at the root."""
        stored = await self._session.storage.get_value(values.lane_leaf(self._lane), context)
        return None if stored is None else stored.value

    async def get_entry(self, entry_id: str, context: Context) -> Entry | None:
        """A committed entry, or None."""
        return (await self._session.storage.get_entries([entry_id], context)).get(entry_id)

    async def get_stats(self, context: Context) -> SessionStats:
        """Message count and usage totals of the session."""
        return await self._session.storage.get_stats(context)

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """The value at an address."""
        return await self._session.storage.get_value(address, context)

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        """Values whose key starts with the bound key."""
        return await self._session.storage.scan_values(prefix, context)

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """One page of a list."""
        return await self._session.storage.read_list(address, options, context)

    async def get_name(self, context: Context) -> str | None:
        """The session's name."""
        stored = await self._session.storage.get_value(values.SESSION_NAME, context)
        return None if stored is None else stored.value

    async def get_label(self, target_id: str, context: Context) -> str | None:
        """The label of an entry."""
        stored = await self._session.storage.get_value(values.entry_label(target_id), context)
        return None if stored is None else stored.value

    async def find_entries(self, query: EntryQuery | None, context: Context) -> list[Entry]:
        """Entries of all branches, by sequence."""
        query = query or EntryQuery()
        check_limit(query.limit)
        descending = query.order == "desc"
        scan = EntryScan(
            type=query.type,
            custom_type=query.custom_type,
            from_seq=None if query.cursor is None or descending else query.cursor + 1,
            to_seq=None if query.cursor is None or not descending else query.cursor - 1,
            order=query.order,
            limit=query.limit,
        )
        return await self._session.storage.scan_entries(scan, context)

    async def find_entry(self, query: EntryQuery | None, context: Context) -> Entry | None:
        """The first entry that `find_entries` would return."""
        found = await self.find_entries(replace(query or EntryQuery(), limit=1), context)
        return found[0] if found else None

    async def find_entries_on_branch(
        self, query: BranchQuery | None, context: Context
    ) -> list[Entry]:
        """Entries on the path from `start` (the lane's leaf) to the root."""
        query = query or BranchQuery()
        start = query.start if query.start is not None else await self.get_leaf_id(context)
        if start is None:
            return []
        scan = BranchScan(
            start=start,
            stop_at_type=query.stop_at_type,
            stop_at_id=query.stop_at_id,
            type=query.type,
            custom_type=query.custom_type,
            order=query.order,
            limit=query.limit,
            cursor=query.cursor,
        )
        return await self._session.storage.scan_branch(scan, context)

    async def find_entry_on_branch(
        self, query: BranchQuery | None, context: Context
    ) -> Entry | None:
        """The first entry that `find_entries_on_branch` would return."""
        found = await self.find_entries_on_branch(replace(query or BranchQuery(), limit=1), context)
        return found[0] if found else None


class SessionTree(Protocol):
    """The writing half of a tree view; every write resolves when it is durably accepted."""

    async def set_value(self, address: Value[T], next_value: T, context: Context) -> None:
        """Replace a value."""
        ...

    async def delete_value(self, address: Value[T], context: Context) -> None:
        """Remove a value."""
        ...

    async def append_list(self, address: ValueList[T], element: T, context: Context) -> None:
        """Append to a list."""
        ...

    async def delete_list(self, address: ValueList[T], context: Context) -> None:
        """Remove a list."""
        ...

    async def set_name(self, name: str | None, context: Context) -> None:
        """Set or remove the session's name."""
        ...

    async def set_label(self, target_id: str, label: str | None, context: Context) -> None:
        """Set or remove an entry's label."""
        ...

    async def append_message(self, message: AgentMessage, context: Context) -> str:
        """Append a message; returns its entry id."""
        ...

    async def append_custom_entry(
        self, custom_type: str, data: JsonValue | None, context: Context
    ) -> str:
        """Append application data; returns its entry id."""
        ...


class SessionView(TreeReads):
    """A tree view of a session that no harness owns: writes place at once, nothing is announced."""

    async def set_value(self, address: Value[T], next_value: T, context: Context) -> None:
        """Replace a value."""
        await self._write(set_value(address, next_value), context)

    async def delete_value(self, address: Value[T], context: Context) -> None:
        """Remove a value."""
        await self._write(delete_value(address), context)

    async def append_list(self, address: ValueList[T], element: T, context: Context) -> None:
        """Append to a list."""
        await self._write(append_list(address, element), context)

    async def delete_list(self, address: ValueList[T], context: Context) -> None:
        """Remove a list."""
        await self._write(delete_list(address), context)

    async def set_name(self, name: str | None, context: Context) -> None:
        """Set or remove the session's name."""
        await self._write(name_write(name), context)

    async def set_label(self, target_id: str, label: str | None, context: Context) -> None:
        """Set or remove an entry's label."""
        await self._write(label_write(target_id, label), context)

    async def append_message(self, message: AgentMessage, context: Context) -> str:
        """Append a message; returns its entry id."""
        check_appendable(message)
        return await self._append(MessagePayload(message=message), context)

    async def append_custom_entry(
        self, custom_type: str, data: JsonValue | None, context: Context
    ) -> str:
        """Append application data; returns its entry id."""
        return await self._append(custom_payload(custom_type, data), context)

    async def _write(self, write: Write, context: Context) -> None:
        async def mutation(mutator: SessionMutator, inner: Context) -> None:
            await mutator.commit((write,), inner)

        await self._session.mutate(self._lane, mutation, context)

    async def _append(self, payload: EntryPayload, context: Context) -> str:
        entry_id = self._session.environment.ids.next()

        async def mutation(mutator: SessionMutator, inner: Context) -> None:
            stored = await mutator.get_value(values.lane_leaf(self._lane), inner)
            parent = None if stored is None else stored.value
            await mutator.commit(
                (
                    insert_entry(NewEntry(entry_id, parent, payload)),
                    set_value(values.lane_leaf(self._lane), entry_id),
                ),
                inner,
            )

        await self._session.mutate(self._lane, mutation, context)
        return entry_id


def name_write(name: str | None) -> Write:
    """The write that sets or removes the session's name."""
    address = values.SESSION_NAME
    return delete_value(address) if name is None else set_value(address, name)


def label_write(target_id: str, label: str | None) -> Write:
    """The write that sets or removes a label."""
    address = values.entry_label(target_id)
    return delete_value(address) if label is None else set_value(address, label)


def custom_payload(custom_type: str, data: JsonValue | None) -> CustomPayload:
    """A custom entry's payload with storable data; None means no data."""
    if not custom_type:
        raise InvalidArgument("a custom entry needs a type")
    if data is None:
        return CustomPayload(custom_type=custom_type)
    return CustomPayload(custom_type=custom_type, data=foreign_json(data))


def check_appendable(message: AgentMessage) -> None:
    """Raise `InvalidArgument` for a message that is not settled."""
    if isinstance(message, AssistantMessage) and message.stop_reason == "pending":
        raise InvalidArgument("an assistant message must be settled before it is stored")
