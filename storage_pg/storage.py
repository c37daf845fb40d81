"""Postgres as a storage backend: one session, owned through a lease (design §4, §5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from harness.clock import Clock
from harness.codec import decode, encode_str
from harness.context import BACKGROUND, Context
from harness.entries import Entry, EntryStructure
from harness.errors import LeaseLost, StorageClosed, StorageCorrupt, StorageError
from harness.operation.state import (
    CancelRequested,
    DeferredPhase,
    OperationMeta,
    OperationState,
    RunState,
)
from harness.storage.address import Value, ValueList
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    EntryScan,
    ListElement,
    ListRead,
    StoredValue,
    UsageScan,
)
from harness.storage.rows import decode_json
from harness.storage.writes import (
    FRAME_NAMESPACE,
    DeleteValue,
    SetValue,
    Write,
    is_stream,
)
from harness.usage import SessionStats, UsageRow
from storage_pg.behind import Behind
from storage_pg.claimed import TRACE, ClaimedSession
from storage_pg.derived import META, STATE
from storage_pg.documents import (
    CONTROL_NAMESPACES,
    Document,
    Identity,
    Known,
    draft,
)
from storage_pg.due import DUE_NOW, Due, PollSettings, due_of
from storage_pg.meter import SILENT, StorageMeter, tell_commit
from storage_pg.queries import QUERIES
from storage_pg.reads import Row, SessionReads
from storage_pg.working import WorkingValues
from storage_pg.writer import SharedWriter

T = TypeVar("T")
Pool = AsyncConnectionPool[AsyncConnection[TupleRow]]

# Any: pyright cannot name a union as type[T]; the decoder takes it.
_STATE_TYPE: Any = OperationState


class _Control:
    """One control value: text as it came with the claim, or the object that a commit set."""

    __slots__ = ("seq", "text", "type", "value")

    def __init__(self, seq: int, text: str | None, value: object) -> None:
        self.seq = seq
        self.text = text
        self.type: Any = None
        self.value = value

    def get(self, type_: Any) -> Any:
        """The value as this type; decoded at its first use. Whoever asks for anything gets JSON."""
        if type_ is Any:
            return decode_json(encode_str(self.value) if self.text is None else self.text)
        if self.text is not None and self.type != type_:
            self.value = decode(self.text, type_)
            self.type = type_
        return self.value


@dataclass(frozen=True, slots=True)
class OpenOperation:
    """An open operation of an owned session. `deferred`: its next step is a poll of a background
    response. `traceparent`: where in a trace it was accepted. `cancelled_at`: when its
    cancellation was requested (Unix ms)."""

    operation_id: str
    lane: str
    due: Due
    deferred: bool
    traceparent: str | None = None
    cancelled_at: int | None = None


class PostgresStorage:
    """The durable state of one owned session; the only writer while the claim lasts.

    What an attachment reads came with the claim and is kept current by the commits that pass
    through here, so it costs no query. `lose` ends it at once when the lease is gone.
    """

    def __init__(
        self,
        claimed: ClaimedSession,
        *,
        pool: Pool,
        writer: SharedWriter,
        clock: Clock,
        polls: PollSettings,
        release: Callable[[], Awaitable[None]],
        meter: StorageMeter = SILENT,
    ) -> None:
        self._identity = Identity.of(claimed.tenant_id, claimed.id, claimed.fence)
        self._pool = pool
        self._writer = writer
        self._clock = clock
        self._polls = polls
        self._release = release
        self._meter = meter
        self._reads = SessionReads(claimed.tenant_id, claimed.id, self._fetch)
        self._control: dict[tuple[str, str], _Control] = {
            (namespace, key): _Control(seq, text, None)
            for namespace, key, seq, text in claimed.control
            if namespace != TRACE
        }
        self._traces = {
            key: text for namespace, key, _, text in claimed.control if namespace == TRACE
        }
        self._stats = claimed.stats
        self._next_seq = claimed.next_seq
        self._due: dict[str, Due] = {
            key: _due_of(control)
            for (namespace, key), control in self._control.items()
            if namespace == STATE
        }
        self._working = WorkingValues()
        self._behind = Behind(claimed.next_seq)
        self._sender: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._closed = False
        self._released = False
        self._lost: StorageError | None = None

    # Writing

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """Apply all writes or none, in one round trip; raises `LeaseLost` when fenced out.

        A cancelled caller gets its cancellation when the commit's outcome is known. Frames are
        answered before they are sent (see `Behind`): a failure of theirs is told to the next commit.
        """
        self._check()
        if writes and is_stream(writes) and not self._behind.full:
            return self._defer(writes)
        async with self._turn:
            if self._lost is not None:
                raise self._lost
            stamp = self._clock.now_ms()
            if not writes:
                return CommitResult(self._next_seq, (), stamp)
            document = self._draft(writes, stamp, context)
            first_seq = await self._send(document, writes)
            return CommitResult(first_seq, tuple(range(first_seq, first_seq + len(writes))), stamp)

    def _defer(self, writes: Sequence[Write]) -> CommitResult:
        if self._lost is not None:
            raise self._lost
        stamp = self._clock.now_ms()
        first_seq = self._behind.add(self._draft(writes, stamp, BACKGROUND))
        self._send_soon()
        return CommitResult(first_seq, tuple(range(first_seq, first_seq + len(writes))), stamp)

    def _send_soon(self) -> None:
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        try:
            # A turn for each document: whoever wants to commit meanwhile takes along what waits.
            while not self._behind.empty and self._lost is None:
                async with self._turn:
                    await self._write_down()
        except StorageError as error:
            self.lose(error)
        finally:
            self._sender = None

    async def _write_down(self) -> None:
        """Send what waits, in a document of its own. It is this caller's turn."""
        if self._behind.empty or self._lost is not None:
            return
        await self._send(self._draft((), self._clock.now_ms(), BACKGROUND), ())

    async def _write_down_first(self) -> None:
        """Return when whatever was answered before this call is stored, or nothing will be any more: a
        turn suffices, because each takes along all that waits."""
        async with self._turn:
            try:
                await self._write_down()
            except StorageError as error:
                self.lose(error)

    def _draft(self, writes: Sequence[Write], stamp: int, context: Context) -> Document:
        known = Known(self._stats, self._due, self._next_seq)
        return draft(writes, self._identity, known, stamp, self._polls, context.telemetry)

    async def _send(self, document: Document, writes: Sequence[Write]) -> int:
        """Send a document of these writes, after what waits; returns their first sequence number."""
        waited = self._behind.precede(document)
        first_seq = self._behind.promise(len(writes))
        begun = self._clock.monotonic()
        self._writer.submit(document)
        try:
            await document.finished()
        finally:
            # Also when this task was cancelled: the commit happened, or it did not.
            seconds = self._clock.monotonic() - begun
            self._meter.committed(seconds, relaxed=document.relaxed)
            try:
                self._conclude(document, writes, first_seq)
            except StorageCorrupt:
                self._behind.restore(waited, self._next_seq)
                if waited:
                    self._send_soon()
                raise
        return first_seq

    def _conclude(self, document: Document, writes: Sequence[Write], first_seq: int) -> None:
        outcome = document.outcome
        assert outcome is not None
        if isinstance(outcome, StorageError):
            if not isinstance(outcome, StorageCorrupt):
                # Nothing is known of the session any more; a new claim will know.
                self._lost = StorageError(f"an earlier commit failed: {outcome}")
            raise outcome
        if outcome[0] is None:
            self._lost = LeaseLost()
            raise self._lost
        self._next_seq = outcome[0] + document.writes
        self._stats = document.stats
        tell_commit(self._meter, writes, document.due, self._due)
        self._traces.update(document.traces)
        for operation, due in document.due.items():
            if due is None:
                self._due.pop(operation, None)
                self._traces.pop(operation, None)
            else:
                self._due[operation] = due
        self._working.note(writes, first_seq)
        for seq, write in enumerate(writes, start=first_seq):
            if isinstance(write, SetValue):
                if write.namespace in CONTROL_NAMESPACES:
                    self._control[write.namespace, write.key] = _Control(seq, None, write.value)
            elif isinstance(write, DeleteValue) and write.namespace in CONTROL_NAMESPACES:
                self._control.pop((write.namespace, write.key), None)

    def lose(self, error: StorageError | None = None) -> None:
        """The lease is gone: refuse every commit from now on. The fence refuses those under way."""
        if self._lost is None:
            self._lost = error or LeaseLost()

    async def close(self, context: Context) -> None:
        """Refuse new calls, finish admitted commits, give the session back. Idempotent."""
        self._closed = True
        async with self._turn:
            if not self._released:
                self._released = True
                try:
                    await self._write_down()
                except StorageError as error:
                    self.lose(error)
                finally:
                    await self._release()

    # Reading

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        """The entries that exist among `ids`."""
        self._check()
        return await self._reads.get_entries(ids, context)

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """The current value, or None."""
        self._check()
        if address.namespace in CONTROL_NAMESPACES:
            control = self._control.get((address.namespace, address.key))
            if control is None:
                return None
            return StoredValue(address, control.get(address.type), control.seq)
        return await self._reads.get_value(address, context)

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        """Values of the namespace whose key starts with the bound key, by code point."""
        self._check()
        if prefix.namespace not in CONTROL_NAMESPACES:
            known = self._working.scan(prefix)
            if known is not None:
                return known
            return await self._reads.scan_values(prefix, context)
        found: list[StoredValue[T]] = [
            StoredValue(Value(prefix.type, namespace, key), control.get(prefix.type), control.seq)
            for (namespace, key), control in self._control.items()
            if namespace == prefix.namespace and key.startswith(prefix.key)
        ]
        return sorted(found, key=lambda stored: stored.address.key)

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """One page of a list."""
        self._check()
        if address.namespace == FRAME_NAMESPACE:
            await self._write_down_first()
        return await self._reads.read_list(address, options, context)

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        """Entries on the path from `start` to the root."""
        self._check()
        return await self._reads.scan_branch(query, context)

    async def scan_branch_structure(
        self, query: BranchScan, context: Context
    ) -> list[EntryStructure]:
        """The same walk without payloads."""
        self._check()
        return await self._reads.scan_branch_structure(query, context)

    async def scan_entries(self, query: EntryScan, context: Context) -> list[Entry]:
        """All entries of the session by sequence."""
        self._check()
        return await self._reads.scan_entries(query, context)

    async def scan_usage(self, query: UsageScan, context: Context) -> list[UsageRow]:
        """Ledger rows by sequence."""
        self._check()
        return await self._reads.scan_usage(query, context)

    async def get_stats(self, context: Context) -> SessionStats:
        """The maintained totals."""
        self._check()
        return self._stats

    # What the owner answers for

    @property
    def next_seq(self) -> int:
        """The next free sequence number: where the session stands."""
        return self._next_seq

    def open_operations(self) -> list[OpenOperation]:
        """Every open operation and when somebody must look at it; costs no query."""
        found: list[OpenOperation] = []
        for operation_id, due in self._due.items():
            meta: OperationMeta = self._control[META, operation_id].get(OperationMeta)
            state: OperationState = self._control[STATE, operation_id].get(_STATE_TYPE)
            deferred = isinstance(state, RunState) and isinstance(state.phase, DeferredPhase)
            trace = self._traces.get(operation_id)
            control = state.control
            cancelled = control.requested_at if isinstance(control, CancelRequested) else None
            found.append(OpenOperation(operation_id, meta.lane, due, deferred, trace, cancelled))
        return found

    def _check(self) -> None:
        if self._closed:
            raise StorageClosed

    async def _fetch(self, query: str, parameters: Sequence[object]) -> list[Row]:
        return await fetch_from(self._pool, query, parameters)


def _due_of(control: _Control) -> Due:
    try:
        return due_of(control.get(_STATE_TYPE))
    except StorageCorrupt:
        # Whoever attaches hears of it; the session can be owned all the same.
        return DUE_NOW


async def fetch_from(pool: Pool, query: str, parameters: Sequence[object]) -> list[Row]:
    """Run one named read on a pooled connection."""
    try:
        async with pool.connection() as connection:
            cursor = await connection.execute(QUERIES[query], parameters)
            return await cursor.fetchall()
    except (psycopg.Error, PoolTimeout, PoolClosed) as error:
        raise read_error(error) from error


def read_error(error: Exception) -> StorageError:
    """What a failed read means to the harness."""
    if isinstance(error, psycopg.Error) and error.sqlstate == "LW002":
        return StorageCorrupt(error.diag.message_primary or str(error))
    return StorageError(f"the database refused a read: {error}")
