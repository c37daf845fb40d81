"""What a storage backend promises for one session: one write verb and a few bounded queries (§1.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeAlias, TypeVar

from harness.context import Context
from harness.entries import Entry, EntryStructure, EntryType
from harness.errors import InvalidArgument
from harness.storage.address import Value, ValueList
from harness.storage.writes import Write
from harness.usage import SessionStats, UsageRow

T = TypeVar("T")

BranchOrder: TypeAlias = Literal["newestFirst", "oldestFirst"]
SeqOrder: TypeAlias = Literal["asc", "desc"]
DEFAULT_PAGE = 1_000
MAX_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The sequence numbers given to the writes, in order, and the transaction's time (Unix ms)."""

    first_seq: int
    seqs: tuple[int, ...]
    timestamp: int


@dataclass(frozen=True, slots=True)
class StoredValue(Generic[T]):
    """A value and the sequence number of the write that set it last."""

    address: Value[T]
    value: T
    seq: int


@dataclass(frozen=True, slots=True)
class ListElement(Generic[T]):
    """A list element and its sequence number, which is also its cursor."""

    seq: int
    value: T


@dataclass(frozen=True, slots=True)
class ListRead:
    """One page of a list: elements after (asc) or before (desc) `cursor`, at most `limit`."""

    cursor: int | None = None
    order: SeqOrder = "asc"
    limit: int = DEFAULT_PAGE


@dataclass(frozen=True, slots=True)
class BranchScan:
    """A walk from `start` toward the root (§2.5).

    Order applies first; the scan ends after the first entry that matches `stop_at_type` or
    `stop_at_id`; then `type`/`custom_type` filter, `cursor` (an exclusive seq) and `limit` apply.
    """

    start: str
    stop_at_type: EntryType | None = None
    stop_at_id: str | None = None
    type: EntryType | None = None
    custom_type: str | None = None
    order: BranchOrder = "newestFirst"
    limit: int | None = None
    cursor: int | None = None


@dataclass(frozen=True, slots=True)
class EntryScan:
    """A session-wide inventory of entries by sequence, bounds inclusive."""

    type: EntryType | None = None
    custom_type: str | None = None
    from_seq: int | None = None
    to_seq: int | None = None
    order: SeqOrder = "asc"
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class UsageScan:
    """A read of the ledger by sequence, bounds inclusive."""

    from_seq: int | None = None
    to_seq: int | None = None
    order: SeqOrder = "asc"
    limit: int | None = None


class Storage(Protocol):
    """The durable state of one session. One writer; commits are serialized and all-or-none.

    Every method raises `StorageClosed` after `close`. A backend with a lease raises `LeaseLost`
    from `commit` once another owner took the session.
    """

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """Apply all writes in order or none; raises `StorageCorrupt` on a broken invariant (§1.4)."""
        ...

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        """The entries that exist among `ids`."""
        ...

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """The current value, or None."""
        ...

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        """Values of the namespace whose key starts with the bound key, by key (code points)."""
        ...

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """One page of a list."""
        ...

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        """Entries on the path from `start` to the root (§2.5); raises `StorageCorrupt` if unknown."""
        ...

    async def scan_branch_structure(
        self, query: BranchScan, context: Context
    ) -> list[EntryStructure]:
        """The same walk without payloads."""
        ...

    async def scan_entries(self, query: EntryScan, context: Context) -> list[Entry]:
        """All entries of the session by sequence."""
        ...

    async def scan_usage(self, query: UsageScan, context: Context) -> list[UsageRow]:
        """Ledger rows by sequence."""
        ...

    async def get_stats(self, context: Context) -> SessionStats:
        """The maintained totals."""
        ...

    async def close(self, context: Context) -> None:
        """Refuse new calls, finish admitted commits, release the writer's claim. Idempotent."""
        ...


def page_limit(limit: int) -> int:
    """The effective page size; raises `InvalidArgument` unless it is a positive safe integer."""
    if limit < 1 or limit > 2**53 - 1:
        raise InvalidArgument(f"limit must be a positive safe integer, not {limit}")
    return min(limit, MAX_PAGE)


def check_limit(limit: int | None) -> None:
    """Raise `InvalidArgument` for a limit that is not a positive safe integer."""
    if limit is not None:
        page_limit(limit)
