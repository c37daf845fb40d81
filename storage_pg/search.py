"""Full-text search in Postgres: the interface of `harness.search`, for one tenant's sessions (§2.8).

Text is cut into terms here, by the rules that every index shares, and not by the server's own text
search configurations; the server keeps, intersects and ranks them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from harness.context import AbortSignal, Context
from harness.errors import StorageError
from harness.search.labels import wanted_labels
from harness.search.results import RowSearch, Search
from harness.search.service import (
    CursorMoved,
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
from storage_pg.idempotency import tenant_transaction
from storage_pg.queries import QUERIES
from storage_pg.reads import is_uuid
from storage_pg.storage import Pool

# A word that is everywhere must not make a search read a tenant's whole history.
MAX_RANKED = 20_000
_MAX_POSITIONS = 255


class PostgresSearch(RowSearch):
    """Searches and indexes the sessions of one tenant, in the database that holds them.

    Of the entries that match, the newest `MAX_RANKED` are ranked; in one session all of them. Closing it closes no connection:
    the pool is the caller's.
    """

    def __init__(self, pool: Pool, tenant_id: str, metadata_fields: Sequence[str] = ()) -> None:
        self._pool = pool
        self._tenant = tenant_id
        super().__init__(metadata_fields)

    # Searching

    async def _rows(
        self, search: Search, query: SearchQuery, phrases: tuple[Phrase, ...], context: Context
    ) -> list[TupleRow]:
        if context.cancelled:
            raise SearchAborted("the search was cancelled")
        if not _possible(query):
            return []
        labels = wanted_labels(query.where)
        after = query.after
        parameters = {
            "tenant": self._tenant,
            "wanted": " & ".join(_tsquery(phrase) for phrase in phrases),
            "types": None if query.entry_types is None else list(query.entry_types),
            "labels": labels or None,
            "most": MAX_RANKED,
            "session": query.session_id,
            "within": None if query.within is None else list(filter(is_uuid, query.within)),
            "score": None if after is None else after.score,
            "time": None if after is None else after.timestamp,
            "entry": None if after is None else after.entry_id,
            "of_session": None if after is None else after.session_id,
            "limit": query.limit,
        }
        try:
            async with (
                tenant_transaction(self._pool, self._tenant) as connection,
                _stopped_by(connection, context.abort_signal),
            ):
                return await (await connection.execute(QUERIES[search], parameters)).fetchall()
        except StorageError as error:
            if context.cancelled:
                raise SearchAborted("the search was cancelled") from error
            raise SearchError(str(error)) from error

    # Filling

    async def positions(
        self, session_ids: Sequence[str], context: Context
    ) -> Mapping[str, Position]:
        """Where it is with each of these sessions."""
        possible = [session_id for session_id in session_ids if is_uuid(session_id)]
        rows = await self._run("search_positions", (possible,))
        return {row[0]: _position(row[1:]) for row in rows}

    async def index_batch(self, batch: SearchBatch, context: Context) -> None:
        """Take a batch and move the position, in one transaction.

        Raises `CursorMoved`, also when the session's store is not the batch's any more.
        """
        documents = batch.documents
        # A page of long texts takes a while to cut: whoever else runs here must not wait for it.
        terms = await asyncio.to_thread(self._vectors, documents)
        try:
            async with tenant_transaction(self._pool, self._tenant) as connection:
                await connection.execute(QUERIES["search_lock"], (batch.session_id,))
                await _must_be_current(connection, batch)
                found = await connection.execute(QUERIES["search_positions"], ([batch.session_id],))
                row = await found.fetchone()
                if must_follow(batch, None if row is None else _position(row[1:])):
                    await connection.execute(QUERIES["search_forget"], (batch.session_id,))
                if documents:
                    await connection.execute(
                        QUERIES["search_add"],
                        {
                            "session": batch.session_id,
                            "tenant": self._tenant,
                            "entries": [document.entry_id for document in documents],
                            "times": [document.timestamp for document in documents],
                            "types": [document.type for document in documents],
                            "bodies": [document.text for document in documents],
                            "terms": terms,
                        },
                    )
                await connection.execute(
                    QUERIES["search_move"],
                    {
                        "session": batch.session_id,
                        "tenant": self._tenant,
                        "created_at": batch.store.created_at,
                        "generation": batch.store.generation,
                        "cursor": batch.to_seq,
                        "stamp": batch.stamp,
                        "labels": list(batch.labels),
                    },
                )
        except StorageError as error:
            raise SearchError(str(error)) from error

    def _vectors(self, documents: Sequence[SearchDocument]) -> list[str]:
        return [_tsvector(document.text, self._tenant) for document in documents]

    async def session_ids(self, after: str | None, limit: int, context: Context) -> list[str]:
        """One page of the sessions it knows, by id."""
        rows = await self._run(
            "search_known", {"tenant": self._tenant, "after": after, "limit": limit}
        )
        return [row[0] for row in rows]

    async def remove(self, session_id: str, context: Context) -> None:
        """Forget a session. Deleting it from the database has done so already."""
        if not is_uuid(session_id):
            return
        try:
            async with tenant_transaction(self._pool, self._tenant) as connection:
                await connection.execute(QUERIES["search_lock"], (session_id,))
                await connection.execute(QUERIES["search_forget"], (session_id,))
        except StorageError as error:
            raise SearchError(str(error)) from error

    async def close(self) -> None:
        """Nothing is held."""

    async def _run(
        self, name: str, parameters: Sequence[Any] | Mapping[str, Any]
    ) -> list[TupleRow]:
        try:
            async with tenant_transaction(self._pool, self._tenant) as connection:
                return await (await connection.execute(QUERIES[name], parameters)).fetchall()
        except StorageError as error:
            raise SearchError(str(error)) from error


@asynccontextmanager
async def _stopped_by(
    connection: psycopg.AsyncConnection[TupleRow], signal: AbortSignal | None
) -> AsyncGenerator[None]:
    """Ask the server to stop what the block runs when the caller goes away."""
    asked: list[asyncio.Task[None]] = []
    loop = asyncio.get_running_loop()

    def ask() -> None:
        asked.append(loop.create_task(connection.cancel_safe()))

    ignore = None if signal is None else signal.on_abort(ask)
    try:
        yield
    finally:
        if ignore is not None:
            ignore()
        # The request must not outlive the block: it would hit the connection's next query.
        await asyncio.gather(*asked, return_exceptions=True)


async def _must_be_current(
    connection: psycopg.AsyncConnection[TupleRow], batch: SearchBatch
) -> None:
    found = await connection.execute(QUERIES["search_store"], (batch.session_id,))
    row = await found.fetchone()
    if row is None:
        raise CursorMoved(f"session {batch.session_id} is not in this database")
    if StoreIdentity(*row) != batch.store:
        raise CursorMoved(f"session {batch.session_id} has another store now")


def _possible(query: SearchQuery) -> bool:
    """Whether the ids that it names can be ids here."""
    named = [] if query.session_id is None else [query.session_id]
    if query.after is not None:
        named += [query.after.entry_id, query.after.session_id]
    return all(map(is_uuid, named))


def _position(row: Sequence[Any]) -> Position:
    created_at, generation, cursor, stamp, labels = row
    return Position(StoreIdentity(created_at, generation), cursor, stamp, tuple(labels))


def _tsquery(phrase: Phrase) -> str:
    """A phrase as the server reads queries; terms hold letters and digits only."""
    terms = [f"'{term}'" for term in phrase.terms]
    if phrase.prefix:
        terms[-1] += ":*"
    return f"({' <-> '.join(terms)})"


def _tsvector(text: str, tenant_id: str) -> str:
    """A text's terms with their places, as the server reads vectors, and the tenant's own term."""
    places: dict[str, list[str]] = {}
    for place, term in enumerate(islice(terms_of(text), MAX_TERMS), start=1):
        found = places.setdefault(term.text, [])
        if len(found) < _MAX_POSITIONS:
            found.append(str(place))
    terms = [f"'{term}':{','.join(found)}" for term, found in places.items()]
    return " ".join((*terms, f"'@{tenant_id}'"))
