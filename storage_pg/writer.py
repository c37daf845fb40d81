"""The shared writer: commits of different sessions in one process go to the database together.

What queued up while the last call was under way goes in the next one; an idle writer sends a
single commit at once, with no timer. Each session has at most one document on its way, because a
storage sends the next only after the answer to the last. Commits that wait for the disk and those
that need not each have a connection of their own, so that a stream's frames never wait behind a
settlement's flush.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque

import psycopg

from harness.errors import StorageClosed, StorageCorrupt, StorageError
from storage_pg import arrays
from storage_pg.backoff import Backoff
from storage_pg.connect import connect
from storage_pg.documents import Document
from storage_pg.queries import QUERIES
from storage_pg.wire import Answer, ConnectionLost, Refused, Wire

# Bounds of one call: enough to share a flush among many, small enough not to hold rows for long.
_MAX_DOCUMENTS = 64
_MAX_BYTES = 8 * 1024 * 1024

# After a lost connection: how long to go on asking whether the commit was applied.
_RECOVER_SECONDS = 10.0
_RECOVER_FIRST = 0.05
_RECOVER_LONGEST = 0.5

# Server errors that say "not now" rather than "not so": serialization, deadlock, lock timeout.
_TRANSIENT = frozenset({"40001", "40P01", "55P03"})
_TRANSIENT_TRIES = 5


class OperationExists(StorageCorrupt):
    """The id of a new operation is taken, by whichever tenant; nothing was applied."""


class OutcomeUnknown(StorageError):
    """The connection broke and stayed broken: the commit may or may not have been applied."""


class SharedWriter:
    """Sends documents; `dsn` may lead through a transaction-mode pooler."""

    def __init__(self, dsn: str, rng: random.Random | None = None) -> None:
        rng = rng or random.SystemRandom()
        self._strict = _Line(dsn, rng, relaxed=False)
        self._relaxed = _Line(dsn, rng, relaxed=True)
        self._closed = False

    def submit(self, document: Document) -> None:
        """Queue a document and send it as soon as the line is free; its outcome will be set.

        Errors among the outcomes: `StorageCorrupt` for a broken invariant, `OutcomeUnknown`, and
        `StorageError` for anything else the database refused.
        """
        if self._closed:
            document.conclude(StorageClosed("the writer is closed"))
            return
        (self._relaxed if document.relaxed else self._strict).submit(document)

    @property
    def counts(self) -> tuple[int, int]:
        """How many documents went in how many calls, so far."""
        lines = (self._strict, self._relaxed)
        return sum(line.documents for line in lines), sum(line.calls for line in lines)

    async def close(self) -> None:
        """Send what is queued, then give the connections back. Idempotent."""
        self._closed = True
        for line in (self._strict, self._relaxed):
            await line.close()


class _Line:
    """One connection and the documents that wait for it."""

    def __init__(self, dsn: str, rng: random.Random, *, relaxed: bool) -> None:
        self._dsn = dsn
        self._rng = rng
        self._relaxed = relaxed
        self._waiting: deque[Document] = deque()
        # Documents of a failed call, to be sent again each alone.
        self._alone: deque[Document] = deque()
        self._tries: dict[Document, int] = {}
        self._under_way: list[Document] = []
        # How many went in the last call.
        self._last = 0
        self._wire: Wire | None = None
        # While it runs, nothing is sent: it connects, or finds out what became of lost commits.
        self._repair: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.calls = 0
        self.documents = 0

    def submit(self, document: Document) -> None:
        self._waiting.append(document)
        self._idle.clear()
        self._send_next()

    async def close(self) -> None:
        await self._idle.wait()
        wire, self._wire = self._wire, None
        if wire is not None:
            await wire.close()

    def _send_next(self) -> None:
        if self._under_way or self._repair is not None:
            return
        if not self._waiting and not self._alone:
            self._idle.set()
            return
        if self._wire is None or self._wire.closed:
            self._start_repair([])
            return
        self._under_way = [self._alone.popleft()] if self._alone else self._take()
        self._last = len(self._under_way)
        self.calls += 1
        self.documents += len(self._under_way)
        self._wire.send(_arguments(self._under_way, self._relaxed))

    def _take(self) -> list[Document]:
        """The documents of the next call."""
        waiting = self._waiting
        # Half of those who take part: while the database writes down this half, the sessions of the
        # other prepare their next. Sent whole, both sides would only ever wait for each other.
        most = min((len(waiting) + self._last + 1) // 2, _MAX_DOCUMENTS)
        batch = [waiting.popleft()]
        size = batch[0].size
        while waiting and len(batch) < most and size + waiting[0].size <= _MAX_BYTES:
            size += waiting[0].size
            batch.append(waiting.popleft())
        # Every caller locks session rows in the order of their ids, so that none waits for another.
        batch.sort(key=lambda document: document.identity.session)
        return batch

    def _answered(self, answer: Answer) -> None:
        batch, self._under_way = self._under_way, []
        match answer:
            case bytes():
                for document, first_seq in zip(batch, arrays.read_big_array(answer), strict=True):
                    self._tries.pop(document, None)
                    document.conclude((first_seq,))
            case Refused():
                self._refused(batch, answer)
            case ConnectionLost():
                if batch:
                    self._start_repair(batch)
        self._send_next()

    def _refused(self, batch: list[Document], error: Refused) -> None:
        if len(batch) > 1:
            # One document's fault is not the others'.
            self._alone.extend(batch)
            return
        document = batch[0]
        tries = self._tries.pop(document, 1)
        if error.sqlstate in _TRANSIENT and tries < _TRANSIENT_TRIES:
            self._tries[document] = tries + 1
            self._alone.append(document)
        elif error.sqlstate[:2] == "57":
            # The server is shutting down and has rolled back: the same as a lost connection.
            self._start_repair(batch)
        else:
            document.conclude(_meaning(error))

    # Repair: the slow path

    def _start_repair(self, lost: list[Document]) -> None:
        self._repair = asyncio.get_running_loop().create_task(self._mend(lost))

    async def _mend(self, lost: list[Document]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RECOVER_SECONDS
        backoff = Backoff(_RECOVER_FIRST, _RECOVER_LONGEST, self._rng)
        reason = "no connection"
        try:
            while loop.time() < deadline:
                try:
                    await self._settle(lost)
                    self._wire = await Wire.open(self._dsn, self._answered)
                    return
                except (psycopg.Error, OSError) as error:
                    reason = str(error).strip()
                    await asyncio.sleep(backoff.pause())
            self._give_up(lost, reason)
        except asyncio.CancelledError:
            self._give_up(lost, "the process is ending")
            raise
        finally:
            self._repair = None
            self._send_next()

    async def _settle(self, lost: list[Document]) -> None:
        """Find out what became of commits whose answer was lost; those not applied are sent again.

        Under its fence a session's sequence number moves only by its own commits, so where it
        stands says whether this one was applied.
        """
        if not lost:
            return
        async with await connect(self._dsn, "laneway-commit") as connection:
            while lost:
                document = lost[0]
                identity = document.identity
                cursor = await connection.execute(
                    QUERIES["session_position"],
                    (identity.tenant.hex(), identity.session.hex(), identity.fence),
                )
                row = await cursor.fetchone()
                if row is None:
                    document.conclude((None,))
                elif row[0] == document.expected_seq + document.writes:
                    document.conclude((document.expected_seq,))
                else:
                    self._alone.append(document)
                lost.pop(0)

    def _give_up(self, lost: list[Document], reason: str) -> None:
        for document in lost:
            document.conclude(OutcomeUnknown(f"lost the database during a commit: {reason}"))
        for queue in (self._alone, self._waiting):
            while queue:
                queue.popleft().conclude(StorageError(f"no connection to commit on: {reason}"))


def _arguments(batch: list[Document], relaxed: bool) -> list[bytes]:
    ids: list[bytes] = []
    numbers: list[int | None] = [int(relaxed)]
    codes: list[int] = []
    texts: list[bytes | None] = []
    for document in batch:
        identity = document.identity
        ids += (identity.session, identity.tenant)
        numbers += (
            identity.fence,
            document.stamp,
            document.writes,
            len(document.codes),
            len(document.texts),
            document.messages,
        )
        codes += document.codes
        texts += document.texts
    return [
        arrays.uuid_array(ids),
        arrays.big_array(numbers),
        arrays.small_array(codes),
        arrays.text_array(texts),
    ]


def _meaning(error: Refused) -> StorageError:
    if error.sqlstate == "23505" and "operations_pkey" in error.message:
        return OperationExists("an operation of that id exists")
    if error.sqlstate in ("23505", "LW001"):
        return StorageCorrupt(error.message)
    return StorageError(f"the database refused a commit: {error}")
