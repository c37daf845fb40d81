"""Full text over a tenant's sessions (§2.8, design §7)."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import Response
from pydantic import AfterValidator

from app.http.auth import Caller, Reader
from app.http.calls import Ctx, Svc, answer, reading, require_lane
from app.http.cursors import page, parse_place_cursor, place_cursor
from app.http.openapi import route
from app.http.parameters import CursorText, LaneFilter, SessionFilter, is_text
from app.http.problems import invalid
from app.http.services import Services
from app.http.sessions import metadata_filter
from harness.context import Context
from harness.entries import EntryType
from harness.search.service import EntryHit, Place, SearchQuery, SessionHit
from harness.search.text import Snippet, parse_query
from harness.storage.protocol import BranchScan
from storage_pg.search import PostgresSearch

router = APIRouter(prefix="/v1", tags=["search"])

MAX_HITS = 100


class SearchHit(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An entry that matches, or the best one of a session that does, with how many match there.

    Scores compare hits of one search. `highlights` are positions in the snippet's code points.
    """

    session_id: str
    entry_id: str
    entry_type: EntryType
    timestamp: int
    score: float
    snippet: Snippet
    matches: int | None = None


class SearchPage(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Hits, the best first. `next_cursor` is there while there may be more."""

    data: tuple[SearchHit, ...]
    next_cursor: str | None = None


def _query(text: str) -> str:
    if not is_text(text):
        raise invalid("query.q", "neither NUL nor lone surrogates are allowed here")
    if not parse_query(text):
        raise invalid("query.q", "there is no word in it")
    return text


Text = Annotated[
    str,
    Query(
        min_length=1,
        max_length=1_000,
        description='All words must occur; `"in quotes"` next to each other, `word*` as a beginning.',
    ),
    AfterValidator(_query),
]


@router.get("/search", **route("search", {200: ("SearchPage", SearchPage)}, problems=(404, 422)))
async def search(
    caller: Reader,
    services: Svc,
    context: Ctx,
    q: Text,
    by: Annotated[
        Literal["session", "entry"],
        Query(description="One hit for each session, or for each entry."),
    ] = "session",
    session_id: SessionFilter = None,
    lane: LaneFilter = None,
    type: Annotated[
        list[EntryType] | None, Query(description="Only entries of these types.")
    ] = None,
    metadata: Annotated[
        str | None,
        Query(
            max_length=4_000,
            description="A JSON object: sessions with these values in fields that are indexed "
            "(`LANEWAY_SEARCH_METADATA_FIELDS`).",
            examples=['{"team": "support"}'],
        ),
    ] = None,
    cursor: CursorText = None,
    limit: Annotated[int, Query(ge=1, le=MAX_HITS, description="Hits of one page.")] = 20,
) -> Response:
    """What was said in the tenant's sessions, the best match first. What has just been said is found
    a moment later. With `sessionId` in one session, and with `lane` on the way from where that lane
    stands to the root."""
    query = SearchQuery(
        text=q,
        limit=limit + 1,
        where={} if metadata is None else metadata_filter(metadata),
        entry_types=type,
        session_id=session_id,
        within=await _within(services, caller, session_id, lane, context),
        after=parse_place_cursor(cursor),
    )
    index = PostgresSearch(
        services.pool, caller.tenant_id, services.settings.search_metadata_fields
    )
    if by == "session":
        hits = [_session_hit(hit) for hit in await index.search_sessions(query, context)]
    else:
        hits = [_entry_hit(hit) async for hit in index.search_entries(query, context)]
    rows, following = page(hits, limit, lambda hit: place_cursor(_place(hit)))
    return answer(SearchPage(data=rows, next_cursor=following))


async def _within(
    services: Services, caller: Caller, session_id: str | None, lane: str | None, context: Context
) -> list[str] | None:
    """The entries of the lane, None for all; raises `Problem` for what does not exist."""
    if session_id is None:
        if lane is not None:
            raise invalid("query.lane", "a lane is one of a session: sessionId is needed too")
        return None
    reader = await reading(services, caller, session_id)
    if lane is None:
        return None
    leaf = await require_lane(reader, lane, context)
    if leaf is None:
        return []
    found = await reader.scan_branch_structure(BranchScan(start=leaf), context)
    return [entry.id for entry in found]


def _place(hit: SearchHit) -> Place:
    return Place(hit.score, hit.timestamp, hit.entry_id, hit.session_id)


def _entry_hit(hit: EntryHit, matches: int | None = None) -> SearchHit:
    return SearchHit(
        session_id=hit.session_id,
        entry_id=hit.entry_id,
        entry_type=hit.entry_type,
        timestamp=hit.timestamp,
        score=hit.score,
        snippet=hit.snippet,
        matches=matches,
    )


def _session_hit(hit: SessionHit) -> SearchHit:
    return _entry_hit(hit.top, hit.matches)
