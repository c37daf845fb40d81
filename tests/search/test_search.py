"""What can be found, in which order, with which filters: the same with every index."""

from __future__ import annotations

from typing import Any

import pytest

from harness.context import BACKGROUND, AbortController, Context
from harness.entries import CompactionPayload
from harness.errors import InvalidArgument
from harness.search.service import SearchAborted, SearchQuery
from tests.search.places import Place, sync
from tests.search.support import (
    assistant,
    custom,
    entries_for,
    found,
    say,
    sessions_for,
    user,
)


async def test_entries_are_found_by_words_phrases_and_beginnings(place: Place) -> None:
    session = await place.new()
    one, two, three, _, summary = await say(
        session,
        "Move the auth service first.",
        assistant("The Auth migration touches config.py and Réservations"),
        "認証サービス、それから migration",
        custom("auth hidden in data"),
        CompactionPayload(
            summary="auth so far", retained_tail=(), tokens_before=1, from_hook=False
        ),
    )
    await sync(place)
    assert await found(place.index, "auth") == {one, two, summary}
    assert await found(place.index, "AUTH migration") == {two}
    assert await found(place.index, '"auth migration"') == {two}
    assert await found(place.index, '"migration auth"') == set()
    assert await found(place.index, "migr*") == {two, three}
    assert await found(place.index, "migr") == set()
    assert await found(place.index, "config.py") == {two}
    assert await found(place.index, "py.config") == set()
    assert await found(place.index, "reservations") == {two}
    assert await found(place.index, "認証") == {three}
    assert await found(place.index, "証認") == set()
    # Tool arguments and custom data are not searchable.
    assert await found(place.index, "zanzibar") == set()
    assert await found(place.index, "hidden") == set()
    for nothing in ("", "  ", "*", '""', "-", "(", "' OR 1=1 --", "\x00", "\ud800", "NOT", "@"):
        assert await found(place.index, nothing) == set(), nothing
    hits = await entries_for(place.index, "auth", types=["compaction"])
    assert [(hit.entry_id, hit.entry_type) for hit in hits] == [(summary, "compaction")]
    assert await entries_for(place.index, "auth", types=[]) == []


async def test_hits_say_where_they_are_and_show_it(place: Place) -> None:
    session = await place.new()
    (entry,) = await say(session, "Please move the Auth service to the new cluster.")
    await sync(place)
    (hit,) = await entries_for(place.index, "auth cluster")
    assert (hit.session_id, hit.entry_id, hit.entry_type) == (session.id, entry, "message")
    stored = (await session.storage.get_entries([entry], BACKGROUND))[entry]
    assert hit.timestamp == stored.timestamp
    marks = [hit.snippet.text[start:end] for start, end in hit.snippet.highlights]
    assert marks == ["Auth", "cluster"]


async def test_better_matches_come_first_and_limits_hold(place: Place) -> None:
    session = await place.new()
    filler = "some other words that say nothing about it " * 8
    weak, strong = await say(session, f"{filler} auth {filler}", "auth auth auth")
    await say(session, *("unrelated talk",) * 5)
    await sync(place)
    hits = await entries_for(place.index, "auth")
    assert [hit.entry_id for hit in hits] == [strong, weak]
    assert hits[0].score > hits[1].score
    assert [hit.entry_id for hit in await entries_for(place.index, "auth", limit=1)] == [strong]
    same = await say(session, "identical note", "identical note", "identical note")
    await sync(place)
    assert [hit.entry_id for hit in await entries_for(place.index, "identical")] == same[::-1]


async def test_sessions_are_ranked_by_their_best_match(place: Place) -> None:
    filler = "words words words words words words words words words words "
    first, second, third = [await place.new() for _ in range(3)]
    await say(first, *(f"{filler} auth {filler}" for _ in range(4)))
    (best,) = await say(second, "auth auth auth auth")
    await say(third, "nothing of the kind")
    await sync(place)
    hits = await sessions_for(place.index, "auth")
    assert [hit.session_id for hit in hits] == [second.id, first.id]
    assert [hit.matches for hit in hits] == [1, 4]
    assert hits[0].top.entry_id == best
    assert hits[0].score == hits[0].top.score
    # The limit counts sessions, not the entries in them.
    assert len(await sessions_for(place.index, "auth", limit=2)) == 2
    assert [hit.session_id for hit in await sessions_for(place.index, "auth", limit=1)] == [
        second.id
    ]


async def test_metadata_filters_apply_before_the_limit(place: Place) -> None:
    mine = await place.new(
        "/repo", {"project": "laneway", "owner": {"name": "ann"}, "tags": [1, 2]}
    )
    others = [
        await place.new("/other", {"project": "x", "owner": {"name": "ann"}}) for _ in range(3)
    ]
    await say(mine, "auth once among many other words that make it a poor match for this")
    for other in others:
        await say(other, "auth auth auth")
    await sync(place)

    async def where(**fields: object) -> list[str]:
        query = SearchQuery(text="auth", limit=1, where=fields)  # pyright: ignore[reportArgumentType]  # any JSON
        return [hit.session_id for hit in await place.index.search_sessions(query, BACKGROUND)]

    assert await where(cwd="/repo") == [mine.id]
    assert await where(cwd="/repo", project="laneway") == [mine.id]
    assert await where(**{"owner.name": "ann", "project": "laneway"}) == [mine.id]
    assert await where(tags=2) == [mine.id]
    assert await where(tags=[1, 2]) == [mine.id]
    assert await where(cwd="/repo", project="x") == []
    assert await where(project="LANEWAY") == []
    assert await where(project=None) == []
    query = SearchQuery(text="auth", where={"cwd": "/repo"})
    hits = [hit async for hit in place.index.search_entries(query, BACKGROUND)]
    assert [hit.session_id for hit in hits] == [mine.id]
    with pytest.raises(InvalidArgument, match="'colour'"):
        await where(colour="red")


async def test_filters_follow_metadata_and_fields(place: Place) -> None:
    session = await place.new("/repo", {"project": "a", "stage": "draft"})
    await say(session, "auth")
    await sync(place)
    other = await place.reindexed(("stage",))
    query = SearchQuery(text="auth", where={"stage": "draft"})
    assert await other.search_sessions(query, BACKGROUND) == []
    place.index = other
    report = await sync(place)
    assert (report.sessions, report.entries) == (1, 0)
    hits = await other.search_sessions(query, BACKGROUND)
    assert [hit.session_id for hit in hits] == [session.id]


async def test_one_session_and_some_of_its_entries_can_be_searched(place: Place) -> None:
    mine, other = await place.new("/repo"), await place.new("/other")
    first, second, third = await say(mine, "auth one", "auth two", "auth three auth")
    await say(other, "auth elsewhere")
    await sync(place)

    async def entries(**query: Any) -> list[str]:
        wanted = SearchQuery(text="auth", **query)
        return [hit.entry_id async for hit in place.index.search_entries(wanted, BACKGROUND)]

    assert await entries(session_id=mine.id) == [third, second, first]
    assert await entries(session_id=mine.id, within=[first, third, "no entry"]) == [third, first]
    assert await entries(session_id=mine.id, within=[]) == []
    assert await entries(session_id=other.id, within=[first]) == []
    assert await entries(session_id=mine.id, where={"cwd": "/other"}) == []
    assert await entries(session_id=mine.id, entry_types=["compaction"]) == []
    assert await entries(session_id="nobody's") == []
    query = SearchQuery(text="auth", session_id=mine.id, within=[first, second])
    (hit,) = await place.index.search_sessions(query, BACKGROUND)
    assert (hit.session_id, hit.matches, hit.top.entry_id) == (mine.id, 2, second)
    with pytest.raises(InvalidArgument):
        await entries(within=[first])


@pytest.mark.parametrize("inside", [False, True])
async def test_pages_go_on_where_the_last_one_ended(place: Place, inside: bool) -> None:
    sessions = [await place.new() for _ in range(4)]
    for number, session in enumerate(sessions):
        await say(session, *("an auth note",) * 3, "auth " * (number + 1))
    await sync(place)
    only: dict[str, Any] = {"session_id": sessions[1].id} if inside else {}

    async def entries(limit: int, after: Any = None) -> list[Any]:
        query = SearchQuery(text="auth", limit=limit, after=after, **only)
        return [hit async for hit in place.index.search_entries(query, BACKGROUND)]

    async def by_session(limit: int, after: Any = None) -> list[Any]:
        query = SearchQuery(text="auth", limit=limit, after=after, **only)
        return [hit.top for hit in await place.index.search_sessions(query, BACKGROUND)]

    for search, count in ((entries, 4 if inside else 16), (by_session, 1 if inside else 4)):
        whole = await search(100)
        assert len(whole) == count
        for size in (1, 3):
            seen: list[Any] = []
            while page := await search(size, seen[-1].place if seen else None):
                assert len(page) <= size
                seen += page
            assert seen == whole


async def test_bad_limits_are_refused(place: Place) -> None:
    for limit in (0, -1, 1_001, 10**20):
        with pytest.raises(InvalidArgument):
            await sessions_for(place.index, "auth", limit=limit)
        with pytest.raises(InvalidArgument):
            await entries_for(place.index, "auth", limit=limit)


async def test_foreign_text_is_found_and_harms_nothing(place: Place) -> None:
    session = await place.new(metadata={"project": "a' OR '1'='1"})
    odd, long, wide = await say(
        session,
        user("nul\x00byte lone\ud800surrogate 'quoted' \\back :1,2 & | ! <-> @tenant"),
        user("needle " + "x" * 1_000_000),
        user(" ".join(f"w{n}" for n in range(30_000))),
    )
    await sync(place)
    assert await found(place.index, "nul byte quoted tenant") == {odd}
    assert await found(place.index, "needle") == {long}
    assert await found(place.index, "w1 w15999") == {wide}
    assert await found(place.index, "w16001") == set()
    query = SearchQuery(text="needle", where={"project": "a' OR '1'='1"})
    assert len(await place.index.search_sessions(query, BACKGROUND)) == 1


async def test_a_cancelled_search_ends(place: Place) -> None:
    session = await place.new()
    await say(session, "auth")
    await sync(place)
    controller = AbortController()
    controller.abort()
    with pytest.raises(SearchAborted):
        await place.index.search_sessions(
            SearchQuery(text="auth"), Context(abort_signal=controller.signal)
        )
    assert len(await sessions_for(place.index, "auth")) == 1
