"""A storage that passes everything through: the base of the test decorators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from harness.context import Context
from harness.entries import Entry, EntryStructure
from harness.storage.address import Value, ValueList
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    EntryScan,
    ListElement,
    ListRead,
    Storage,
    StoredValue,
    UsageScan,
)
from harness.storage.writes import Write
from harness.usage import SessionStats, UsageRow

T = TypeVar("T")


class StorageDecorator:
    """Forwards each call to `inner`. A subclass changes what it is about."""

    def __init__(self, inner: Storage) -> None:
        self.inner = inner

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """See `Storage.commit`."""
        return await self.inner.commit(writes, context)

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        """See `Storage.get_entries`."""
        return await self.inner.get_entries(ids, context)

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """See `Storage.get_value`."""
        return await self.inner.get_value(address, context)

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        """See `Storage.scan_values`."""
        return await self.inner.scan_values(prefix, context)

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """See `Storage.read_list`."""
        return await self.inner.read_list(address, options, context)

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        """See `Storage.scan_branch`."""
        return await self.inner.scan_branch(query, context)

    async def scan_branch_structure(
        self, query: BranchScan, context: Context
    ) -> list[EntryStructure]:
        """See `Storage.scan_branch_structure`."""
        return await self.inner.scan_branch_structure(query, context)

    async def scan_entries(self, query: EntryScan, context: Context) -> list[Entry]:
        """See `Storage.scan_entries`."""
        return await self.inner.scan_entries(query, context)

    async def scan_usage(self, query: UsageScan, context: Context) -> list[UsageRow]:
        """See `Storage.scan_usage`."""
        return await self.inner.scan_usage(query, context)

    async def get_stats(self, context: Context) -> SessionStats:
        """See `Storage.get_stats`."""
        return await self.inner.get_stats(context)

    async def close(self, context: Context) -> None:
        """See `Storage.close`."""
        await self.inner.close(context)
