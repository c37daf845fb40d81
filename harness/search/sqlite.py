"""The reference index: one SQLite file with FTS5, shared by any number of processes (§2.8)."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from harness.context import Context
from harness.search.labels import wanted_labels
from harness.search.results import RowSearch, Search
from harness.search.service import (
    Place,
    Position,
    SearchAborted,
    SearchBatch,
    SearchDocument,
    SearchError,
    SearchQuery,
    StoreIdentity,
    must_follow,
)
from harness.search.text import MAX_TERMS, Phrase, terms_of
from harness.storage.queries import load_queries
from harness.storage.worker import Worker

T = TypeVar("T")

_SQL = load_queries("harness.search.sqlite_sql", "index.sql")
_VERSION = 1
_BUSY_SECONDS = 30.0
_TABLES = (
    "create_sessions",
    "create_labels",
    "create_labels_of_session",
    "create_documents",
    "create_terms",
)


class SqliteSearch(RowSearch):
    """Serves searches and takes batches. Make it with `open`, give it back with `close`.

    Searches see committed batches only and wait for no writer; writers, of this process or another,
    take turns.
    """

    def __init__(self, path: Path, metadata_fields: Sequence[str] = ()) -> None:
        """Use `open` instead: this blocks. Raises `SearchError` for a file that is no index."""
        super().__init__(metadata_fields)
        with _translated():
            self._writing = _connect(path)
            try:
                _prepare(self._writing)
                self._reading = _connect(path)
            except BaseException:
                self._writing.close()
                raise
        self._writer = Worker("search-writer", _nothing, 3_600)
        self._reader = Worker("search-reader", _nothing, 3_600)
        self._interrupt = _Interrupt(self._reading)
        self._closed = False

    @staticmethod
    async def open(path: Path, *, metadata_fields: Sequence[str] = ()) -> SqliteSearch:
        """Open or make the index file. Do not put it among the sessions of a SQLite repository.

        `metadata_fields` are what `SearchQuery.where` can compare (see `labels_of`); when they differ
        from last time, the next synchronization brings them up to date. Raises `SearchError`.
        """
        starter = Worker("search-opening", _nothing, 3_600)
        try:
            return await starter.submit(lambda: SqliteSearch(path, metadata_fields))
        finally:
            starter.stop()

    # Searching

    async def _rows(
        self, search: Search, query: SearchQuery, phrases: tuple[Phrase, ...], context: Context
    ) -> list[tuple[Any, ...]]:
        wanted = wanted_labels(query.where)
        parameters = {
            "match": " AND ".join(_match(phrase) for phrase in phrases),
            "labels": json.dumps(wanted),
            "label_count": len(wanted),
            "types": None if query.entry_types is None else json.dumps(list(query.entry_types)),
            "session": query.session_id,
            "within": None if query.within is None else json.dumps(list(query.within)),
            "limit": query.limit,
            **_after(query.after),
        }

        running = _Running()

        def run() -> list[tuple[Any, ...]]:
            with self._interrupt.guarding(running), _translated():
                return self._reading.execute(_SQL[search], parameters).fetchall()

        signal = context.abort_signal
        ignore = None if signal is None else signal.on_abort(lambda: self._interrupt.stop(running))
        try:
            return await self._on(self._reader, run)
        except SearchError as error:
            if running.stopped:
                raise SearchAborted("the search was cancelled") from error
            raise
        finally:
            if ignore is not None:
                ignore()

    # Filling

    async def positions(
        self, session_ids: Sequence[str], context: Context
    ) -> Mapping[str, Position]:
        """Where it is with each of these sessions."""
        wanted = json.dumps(list(session_ids))

        def run() -> dict[str, Position]:
            with _translated():
                rows = self._writing.execute(_SQL["read_positions"], (wanted,)).fetchall()
            return {row[0]: _position(row[1:]) for row in rows}

        return await self._on(self._writer, run)

    async def index_batch(self, batch: SearchBatch, context: Context) -> None:
        """Take a batch and move the position, in one transaction; raises `CursorMoved`."""
        await self._on(self._writer, lambda: self._index(batch))

    def _index(self, batch: SearchBatch) -> None:
        # Cutting text into terms is the larger part of the work: not while others wait for the lock.
        terms = [_terms(document) for document in batch.documents]
        with self._transaction() as run:
            row = run(_SQL["read_position"], (batch.session_id,)).fetchone()
            held = None if row is None else _position(row)
            if must_follow(batch, held):
                self._forget(batch.session_id)
                held = None
            for document, found in zip(batch.documents, terms, strict=True):
                made = run(
                    _SQL["insert_document"],
                    (
                        batch.session_id,
                        document.entry_id,
                        document.type,
                        document.timestamp,
                        document.text,
                    ),
                ).fetchone()
                if made is not None:
                    run(_SQL["insert_terms"], (made[0], found))
            if held is None or held.labels != batch.labels:
                run(_SQL["delete_labels"], (batch.session_id,))
                for label in batch.labels:
                    run(_SQL["insert_label"], (label, batch.session_id))
            run(
                _SQL["write_position"],
                (
                    batch.session_id,
                    batch.store.created_at,
                    batch.store.generation,
                    batch.to_seq,
                    batch.stamp,
                    json.dumps(batch.labels),
                ),
            )

    async def session_ids(self, after: str | None, limit: int, context: Context) -> list[str]:
        """One page of the sessions it knows, by id."""

        def run() -> list[str]:
            with _translated():
                rows = self._writing.execute(_SQL["session_page"], (after or "", limit)).fetchall()
            return [row[0] for row in rows]

        return await self._on(self._writer, run)

    async def remove(self, session_id: str, context: Context) -> None:
        """Forget a session."""

        def run() -> None:
            with self._transaction():
                self._forget(session_id)

        await self._on(self._writer, run)

    async def compact(self, context: Context) -> None:
        """Leave no byte of what was removed in the file, and make searches as fast as they can be.

        Takes as long as writing the whole index anew; removed text is unfindable without it, too.
        """

        def run() -> None:
            with self._transaction() as execute:
                execute(_SQL["merge_terms"], ())
            with _translated():
                self._writing.execute("VACUUM")
                self._writing.execute("PRAGMA wal_checkpoint(TRUNCATE)")

        await self._on(self._writer, run)

    def _forget(self, session_id: str) -> None:
        for name in ("delete_terms", "delete_documents", "delete_labels", "delete_position"):
            self._writing.execute(_SQL[name], (session_id,))

    @contextmanager
    def _transaction(self) -> Generator[Callable[[str, Sequence[object]], sqlite3.Cursor]]:
        """A write transaction. IMMEDIATE: a reading one could not be upgraded once others wrote."""
        with _translated():
            self._writing.execute("BEGIN IMMEDIATE")
            try:
                yield self._writing.execute
                self._writing.execute("COMMIT")
            except BaseException:
                if self._writing.in_transaction:
                    self._writing.execute("ROLLBACK")
                raise

    async def _on(self, worker: Worker, run: Callable[[], T]) -> T:
        if self._closed:
            raise SearchError("the index is closed")
        return await worker.submit(run)

    async def close(self) -> None:
        """Finish what was begun and close the file. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for worker, connection in ((self._reader, self._reading), (self._writer, self._writing)):
            await worker.submit(connection.close)
            worker.stop()


class _Running:
    """One search and whether its caller went away."""

    __slots__ = ("stopped",)

    def __init__(self) -> None:
        self.stopped = False


class _Interrupt:
    """Stops the search that runs for a caller who went away, and no other one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._current: _Running | None = None

    @contextmanager
    def guarding(self, search: _Running) -> Generator[None]:
        """The block is this search; raises `SearchAborted` when it was stopped before."""
        with self._lock:
            if search.stopped:
                raise SearchAborted("the search was cancelled")
            self._current = search
        try:
            yield
        finally:
            with self._lock:
                self._current = None

    def stop(self, search: _Running) -> None:
        """End it now, or before it begins."""
        with self._lock:
            search.stopped = True
            if self._current is search:
                self._connection.interrupt()


def _connect(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(
        path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
    )
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        # What a power cut takes from a projection is indexed again.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA secure_delete = ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    """Make the tables, of this layout, unless another process has."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version: int = connection.execute(_SQL["read_version"]).fetchone()[0]
        if version > _VERSION:
            raise SearchError(f"the index has layout {version}; this build knows {_VERSION}")
        if version < _VERSION:
            tables: list[str] = [row[0] for row in connection.execute(_SQL["tables"])]
            if tables:
                raise SearchError("this file is no search index: it has other tables in it")
            for name in _TABLES:
                connection.execute(_SQL[name])
            connection.execute(_SQL["write_version"])
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


@contextmanager
def _translated() -> Generator[None]:
    """Raise search errors in place of the library's."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "malformed" in text or "not a database" in text:
            raise SearchError(
                f"the index is damaged ({text}): remove the file and synchronize again"
            ) from error
        raise SearchError(f"SQLite: {text}") from error


def _position(row: Sequence[Any]) -> Position:
    created_at, generation, cursor, stamp, labels = row
    return Position(StoreIdentity(created_at, generation), cursor, stamp, tuple(json.loads(labels)))


def _after(place: Place | None) -> dict[str, Any]:
    if place is None:
        return dict.fromkeys(("score", "time", "entry", "of_session"))
    return {
        "score": place.score,
        "time": place.timestamp,
        "entry": place.entry_id,
        "of_session": place.session_id,
    }


def _terms(document: SearchDocument) -> str:
    return " ".join(term.text for term in islice(terms_of(document.text), MAX_TERMS))


def _match(phrase: Phrase) -> str:
    """A phrase in FTS5's language; terms hold letters and digits only, so nothing needs escaping."""
    return f'"{" ".join(phrase.terms)}"{"*" if phrase.prefix else ""}'


def _nothing() -> None:
    return None
