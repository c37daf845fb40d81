"""What indexes whose hits are rows do alike: check the query, and make results of the rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, TypeAlias

from harness.context import Context
from harness.search.service import EntryHit, SearchQuery, SessionHit, checked
from harness.search.text import Phrase, make_snippet, parse_query

Search: TypeAlias = Literal["search_sessions", "search_entries"]
# Any: a row's columns are what the statement selects.
HitRow: TypeAlias = Sequence[Any]


class RowSearch(ABC):
    """The querying half of a `SearchService`."""

    def __init__(self, metadata_fields: Sequence[str]) -> None:
        self._fields = tuple(metadata_fields)

    @property
    def metadata_fields(self) -> tuple[str, ...]:
        """The metadata fields it can filter on."""
        return self._fields

    @abstractmethod
    async def _rows(
        self, search: Search, query: SearchQuery, phrases: tuple[Phrase, ...], context: Context
    ) -> Sequence[HitRow]:
        """Session, entry, type, timestamp, score and text of each hit, the best first, and for
        sessions the number of matches. There is at least one phrase."""

    async def search_sessions(self, query: SearchQuery, context: Context) -> list[SessionHit]:
        """Sessions by their best match (see `SearchService`)."""
        phrases = self._phrases(query)
        rows = await self._rows("search_sessions", query, phrases, context) if phrases else ()
        return [_session_hit(row, phrases) for row in rows]

    async def search_entries(self, query: SearchQuery, context: Context) -> AsyncIterator[EntryHit]:
        """Entries by match (see `SearchService`)."""
        phrases = self._phrases(query)
        rows = await self._rows("search_entries", query, phrases, context) if phrases else ()
        for row in rows:
            yield _entry_hit(row, phrases)

    def _phrases(self, query: SearchQuery) -> tuple[Phrase, ...]:
        return parse_query(checked(query, self._fields).text)


def _entry_hit(row: HitRow, phrases: tuple[Phrase, ...]) -> EntryHit:
    session_id, entry_id, type_, timestamp, score, text = row[:6]
    return EntryHit(
        session_id=session_id,
        entry_id=entry_id,
        entry_type=type_,
        timestamp=timestamp,
        score=score,
        snippet=make_snippet(text, phrases),
    )


def _session_hit(row: HitRow, phrases: tuple[Phrase, ...]) -> SessionHit:
    top = _entry_hit(row, phrases)
    return SessionHit(session_id=top.session_id, score=top.score, matches=row[6], top=top)
