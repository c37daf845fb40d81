"""What a search index promises: ranked sessions and entries, and how it is filled (§2.8).

An index is a projection that can be rebuilt at any time. It is filled by `harness.search.sync`
from what repositories hold; nothing it does or fails to do touches a session.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from harness.codec import JsonValue
from harness.context import Context
from harness.entries import EntryType
from harness.errors import HarnessError, InvalidArgument
from harness.search.text import Snippet

DEFAULT_LIMIT = 20
MAX_LIMIT = 1_000


class SearchError(HarnessError):
    """The index could not do this; sessions are not affected, and it can be rebuilt."""


class CursorMoved(SearchError):
    """Somebody else indexed or removed this session meanwhile; read its position and go on from there."""


class SearchAborted(SearchError):
    """The caller's context was cancelled before the search was done."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a hit stands among the results of its query: the next page begins after the last one's.

    What is indexed between two pages may stand before it, and is not shown then.
    """

    score: float
    timestamp: int
    entry_id: str
    session_id: str


@dataclass(frozen=True, slots=True)
class SearchQuery:
    """What to look for.

    All words of `text` must occur, `"in quotes"` next to each other, `word*` as a beginning. `limit`
    counts results, from `after` on. `where` compares metadata fields that the index was made with.
    `entry_types` narrows the entries that count, `session_id` to one session's, and `within`, which
    needs it, to some of them (those of a branch, for instance).
    """

    text: str
    limit: int = DEFAULT_LIMIT
    where: Mapping[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    entry_types: Sequence[EntryType] | None = None
    session_id: str | None = None
    within: Collection[str] | None = None
    after: Place | None = None


class EntryHit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry that matches. Scores compare hits of one search in one index; higher is better."""

    session_id: str
    entry_id: str
    entry_type: EntryType
    timestamp: int
    score: float
    snippet: Snippet

    @property
    def place(self) -> Place:
        """Where it stands, for `SearchQuery.after`; a session stands where its best entry does."""
        return Place(self.score, self.timestamp, self.entry_id, self.session_id)


class SessionHit(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A session with entries that match: how many, and the best of them, whose score is the session's."""

    session_id: str
    score: float
    matches: int
    top: EntryHit


class SearchService(Protocol):
    """Queries. Results are the best first, newer before older among equals."""

    async def search_sessions(self, query: SearchQuery, context: Context) -> list[SessionHit]:
        """Sessions by their best match; raises `InvalidArgument`, `SearchError`, `SearchAborted`."""
        ...

    def search_entries(self, query: SearchQuery, context: Context) -> AsyncIterator[EntryHit]:
        """Entries by match; raises what `search_sessions` raises, at the first step."""
        ...

    async def remove(self, session_id: str, context: Context) -> None:
        """Forget a session; nothing happens when it is unknown."""
        ...

    async def close(self) -> None:
        """Let go of the index. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """Which store of a session's entries was indexed: another one means to begin anew.

    A rewrite raises the generation; a session deleted and made again under its id has another
    creation time (Unix ms).
    """

    created_at: int
    generation: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far an index is with a session.

    `seq` is the highest entry sequence number it holds. `stamp` is what the source said of its
    state when indexing was complete, None while it is not. `labels` are the metadata it filters on.
    """

    store: StoreIdentity
    seq: int
    stamp: str | None
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchDocument:
    """The searchable text of one entry (see `harness.search.text.entry_text`)."""

    entry_id: str
    seq: int
    type: EntryType
    timestamp: int
    text: str


@dataclass(frozen=True, slots=True)
class SearchBatch:
    """One step of indexing: the entries between two sequence numbers, inclusive.

    `replaces` is the store that the index held when this began (None: nothing).
    """

    session_id: str
    store: StoreIdentity
    replaces: StoreIdentity | None
    from_seq: int
    to_seq: int
    documents: tuple[SearchDocument, ...]
    labels: tuple[str, ...]
    stamp: str | None


class SearchTarget(Protocol):
    """An index that can be filled. Several processes may fill it at once."""

    @property
    def metadata_fields(self) -> tuple[str, ...]:
        """The metadata fields it can filter on, chosen when it was made."""
        ...

    async def positions(
        self, session_ids: Sequence[str], context: Context
    ) -> Mapping[str, Position]:
        """Where it is with each of these sessions; those it does not know are left out."""
        ...

    async def index_batch(self, batch: SearchBatch, context: Context) -> None:
        """Take a batch and move the position, in one transaction.

        The same batch again changes nothing, and a position never goes back within one store. A store
        other than the one held replaces everything. Raises `CursorMoved` when the batch does not
        follow what the index holds.
        """
        ...

    async def session_ids(self, after: str | None, limit: int, context: Context) -> list[str]:
        """One page of the sessions it knows, by id."""
        ...

    async def remove(self, session_id: str, context: Context) -> None:
        """Forget a session."""
        ...


def checked(query: SearchQuery, metadata_fields: Sequence[str]) -> SearchQuery:
    """The query; raises `InvalidArgument` for a limit out of range, a field that is not indexed, and
    entries of no session."""
    if query.within is not None and query.session_id is None:
        raise InvalidArgument("entries to search within need the session they are of")
    if not 1 <= query.limit <= MAX_LIMIT:
        raise InvalidArgument(f"limit must be between 1 and {MAX_LIMIT}, not {query.limit}")
    for name in query.where:
        if name not in metadata_fields:
            known = ", ".join(metadata_fields) or "none"
            raise InvalidArgument(f"the index has no metadata field {name!r} (it has: {known})")
    return query


def must_follow(batch: SearchBatch, held: Position | None) -> bool:
    """Whether the batch begins a new store; raises `CursorMoved` when it fits neither way."""
    if held is not None and held.store == batch.store:
        if batch.from_seq > held.seq + 1:
            raise CursorMoved(f"session {batch.session_id} is indexed up to {held.seq} only")
        return False
    if batch.from_seq > 1 or batch.replaces != (None if held is None else held.store):
        raise CursorMoved(f"session {batch.session_id} was indexed from another store meanwhile")
    return True
