"""The shared writer: commits of different sessions in one process go to the database together.

What queued up while the last call was under way goes in the next one; an idle writer sends a
single commit at once, with no timer. Each session has at most one document on its way, because a
storage sends the next only after the answer to the last. Commits that wait for the disk and those
that need not each have a connection of their own, so that a stream's frames never wait behind a
settlement's flush.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from dataclasses import dataclass, field

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from harness.errors import StorageClosed, StorageCorrupt, StorageError
from storage_pg import arrays
from storage_pg.connect import connect
from storage_pg.documents import Document
from storage_pg.queries import QUERIES

# Bounds of one call: enough to share a flush among many, small enough not to hold rows for long.
_MAX_DOCUMENTS = 64
_MAX_BYTES = 8 * 1024 * 1024

# After a lost connection: how long to go on asking whether the commit was applied.
_RECOVER_SECONDS = 10.0
_RECOVER_PAUSE = 0.2

# Server errors that say "not now" rather than "not so".
_TRANSIENT = frozenset({"40001", "40P01", "55P03"})
_TRANSIENT_TRIES = 5


class OutcomeUnknown(StorageError):
    """The connection broke and stayed broken: the commit may or may not have been applied."""


@dataclass(slots=True)
class _Line:
    """A queue of documents and the connection that serves it."""

    relaxed: bool
    waiting: deque[Document] = field(default_factory=deque[Document])
    connection: AsyncConnection[TupleRow] | None = None
    pump: asyncio.Task[None] | None = None


class SharedWriter:
    """Sends documents; `dsn` may lead through a transaction-mode pooler."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._strict = _Line(relaxed=False)
        self._relaxed = _Line(relaxed=True)
        self._closed = False
        self.calls = 0
        self.documents = 0

    def submit(self, document: Document) -> asyncio.Future[int | None]:
        """Queue a document. The future gives its first sequence number, or None when fenced out;
        it raises `StorageCorrupt` for a broken invariant and `StorageError` for other failures."""
        if self._closed:
            document.answer.set_exception(StorageClosed("the writer is closed"))
            return document.answer
        line = self._relaxed if document.relaxed else self._strict
        line.waiting.append(document)
        if line.pump is None:
            line.pump = asyncio.get_running_loop().create_task(self._pump(line))
        return document.answer

    async def close(self) -> None:
        """Send what is queued, then give the connections back. Idempotent."""
        self._closed = True
        for line in (self._strict, self._relaxed):
            if line.pump is not None:
                await asyncio.wait([line.pump])
            await self._disconnect(line)

    async def _pump(self, line: _Line) -> None:
        try:
            while line.waiting:
                batch = _take(line.waiting)
                await self._send(line, batch)
        finally:
            line.pump = None
            if line.waiting:  # only when this task was cancelled
                for document in line.waiting:
                    _fail(document, StorageClosed("the writer was stopped"))
                line.waiting.clear()

    async def _send(self, line: _Line, batch: list[Document]) -> None:
        try:
            answers = await self._call(line, batch)
        except asyncio.CancelledError:
            for document in batch:
                _fail(document, OutcomeUnknown("the writer was stopped during a commit"))
            raise
        except psycopg.Error as error:
            if _lost(line.connection, error):
                await self._disconnect(line)
                for document in batch:
                    await self._recover(line, document, error)
            elif len(batch) == 1:
                await self._refused(line, batch[0], error)
            else:
                # One document's fault is not the others': each again, alone.
                for document in batch:
                    await self._send(line, [document])
            return
        except Exception as error:  # noqa: BLE001  # whatever it is, nobody may wait for ever
            await self._disconnect(line)
            for document in batch:
                _fail(document, StorageError(f"commit failed: {error}"), error)
            return
        for document, first_seq in zip(batch, answers, strict=True):
            if not document.answer.done():
                document.answer.set_result(first_seq)

    async def _call(self, line: _Line, batch: list[Document]) -> list[int | None]:
        connection = line.connection
        if connection is None or connection.closed:
            connection = line.connection = await connect(self._dsn)
            arrays.register(connection)
        cursor = await connection.execute(
            QUERIES["commit_batch"], _parameters(batch, line.relaxed), binary=True
        )
        row = await cursor.fetchone()
        assert row is not None
        self.calls += 1
        self.documents += len(batch)
        return row[0]

    async def _refused(self, line: _Line, document: Document, error: psycopg.Error) -> None:
        tries = 1
        while error.sqlstate in _TRANSIENT and tries < _TRANSIENT_TRIES:
            await asyncio.sleep(0.01 * 2**tries)
            tries += 1
            try:
                answers = await self._call(line, [document])
            except psycopg.Error as again:
                error = again
                if _lost(line.connection, again):
                    await self._disconnect(line)
                    await self._recover(line, document, again)
                    return
            else:
                document.answer.set_result(answers[0])
                return
        _fail(document, _meaning(error), error)

    async def _recover(self, line: _Line, document: Document, cause: psycopg.Error) -> None:
        """Find out what became of a commit whose answer was lost, and send it if nothing did.

        Under its fence a session's sequence number moves only by its own commits, so where it
        stands says whether this one was applied.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _RECOVER_SECONDS
        while True:
            try:
                document.answer.set_result(await self._settle(line, document))
                return
            except (psycopg.Error, OSError) as error:
                if isinstance(error, psycopg.Error) and not _lost(line.connection, error):
                    _fail(document, _meaning(error), error)
                    return
                await self._disconnect(line)
            if loop.time() > deadline:
                _fail(
                    document, OutcomeUnknown(f"lost the database during a commit: {cause}"), cause
                )
                return
            await asyncio.sleep(_RECOVER_PAUSE)

    async def _settle(self, line: _Line, document: Document) -> int | None:
        connection = line.connection
        if connection is None or connection.closed:
            connection = line.connection = await connect(self._dsn)
            arrays.register(connection)
        identity = document.identity
        cursor = await connection.execute(
            QUERIES["session_position"],
            (identity.tenant.hex(), identity.session.hex(), identity.fence),
        )
        row = await cursor.fetchone()
        if row is None:
            return None
        if row[0] == document.expected_seq + document.writes:
            return document.expected_seq
        return (await self._call(line, [document]))[0]

    async def _disconnect(self, line: _Line) -> None:
        connection, line.connection = line.connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError):
                await connection.close()


def _take(waiting: deque[Document]) -> list[Document]:
    batch: list[Document] = []
    size = 0
    while waiting and len(batch) < _MAX_DOCUMENTS:
        if batch and size + waiting[0].size > _MAX_BYTES:
            break
        document = waiting.popleft()
        size += document.size
        batch.append(document)
    # Every caller locks session rows in the order of their ids, so that none waits for another.
    batch.sort(key=lambda document: document.identity.session)
    return batch


def _parameters(batch: list[Document], relaxed: bool) -> tuple[object, ...]:
    return (
        arrays.uuid_array([d.identity.session for d in batch]),
        arrays.uuid_array([d.identity.tenant for d in batch]),
        arrays.big_array([d.identity.fence for d in batch]),
        arrays.big_array([d.stamp for d in batch]),
        arrays.int_array([d.writes for d in batch]),
        arrays.int_array([len(d.code) for d in batch]),
        arrays.big_array([d.messages for d in batch]),
        arrays.text_array([d.usage for d in batch]),
        arrays.small_array([code for d in batch for code in d.code]),
        arrays.text_array([text for d in batch for text in d.a]),
        arrays.text_array([text for d in batch for text in d.b]),
        arrays.text_array([text for d in batch for text in d.c]),
        arrays.text_array([text for d in batch for text in d.d]),
        arrays.text_array([text for d in batch for text in d.e]),
        relaxed,
    )


def _lost(connection: AsyncConnection[TupleRow] | None, error: psycopg.Error) -> bool:
    return (
        connection is None
        or connection.closed
        or error.sqlstate is None
        or error.sqlstate[:2] in ("08", "57")
    )


def _meaning(error: psycopg.Error) -> StorageError:
    if error.sqlstate in ("23505", "LW001"):
        return StorageCorrupt(error.diag.message_primary or str(error))
    return StorageError(f"the database refused a commit: {error}")


def _fail(document: Document, error: StorageError, cause: BaseException | None = None) -> None:
    error.__cause__ = cause
    if not document.answer.done():
        document.answer.set_exception(error)
