"""Search over HTTP: what is found, in which order, page by page, and by whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from tests.app.copying import forked, talked
from tests.app.kit import Tenant, World, running_api, running_worker, settings_for
from tests.app.test_operations import new_id
from tests.postgres import Cluster
from workers.indexing import sweep_index

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIELDS = ["team", "tags", "parentSessionId"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(pg_cluster: Cluster) -> AsyncIterator[World]:
    """The servers of this module, which index some of the sessions' metadata."""
    database = pg_cluster.new_database()
    settings = settings_for(database, search_metadata_fields=FIELDS)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running_worker(settings))
        apis = [await stack.enter_async_context(running_api(settings)) for _ in range(2)]
        async with AsyncExitStack() as clients:
            yield World(database, apis, clients)
    pg_cluster.drop(database.name)


async def search(tenant: Tenant, q: str, **query: Any) -> dict[str, Any]:
    """A page of hits, of an index that is up to date."""
    await sweep_index(tenant.world.apis[0].services.pool, FIELDS)
    answer = await tenant.client.get("/v1/search", params={"q": q, **query})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def hits(tenant: Tenant, q: str, **query: Any) -> list[dict[str, Any]]:
    return (await search(tenant, q, **query))["data"]


async def note(tenant: Tenant, session: str, *texts: str) -> list[str]:
    """Messages without a run; returns the entries' ids."""
    made: list[str] = []
    for text in texts:
        answer = await tenant.client.post(
            f"/v1/sessions/{session}/lanes/main/entries",
            json={
                "type": "message",
                "message": {"role": "user", "content": text, "timestamp": 1},
            },
        )
        assert answer.status_code == 201, answer.text
        made.append(answer.json()["entryId"])
    return made


async def test_what_was_just_said_is_found_soon(tenant: Tenant):
    session = await tenant.session()
    await tenant.run(session, "echo: a heron at the river")
    # Nobody sweeps here: the worker pokes when it gives the session back.
    while True:
        answer = await tenant.client.get("/v1/search", params={"q": "heron", "by": "entry"})
        if len(answer.json()["data"]) == 2:
            break
        await asyncio.sleep(0.05)
    assert {hit["sessionId"] for hit in answer.json()["data"]} == {session}


async def test_sessions_and_entries_are_found_best_first_with_a_snippet(tenant: Tenant):
    weak, strong = await tenant.session(), await tenant.session()
    filler = "other words that say nothing " * 10
    await note(tenant, weak, f"{filler} osprey {filler}")
    best, other = await note(tenant, strong, "Osprey, osprey: osprey!", f"an osprey {filler}")
    found = await hits(tenant, "OSPREY")
    assert [(hit["sessionId"], hit["matches"]) for hit in found] == [(strong, 2), (weak, 1)]
    assert found[0]["entryId"] == best
    assert found[0]["score"] > found[1]["score"]
    by_entry = await hits(tenant, "osprey", by="entry")
    assert len(by_entry) == 3
    assert by_entry[0]["entryId"] == best
    assert "matches" not in by_entry[0]
    snippet = found[1]["snippet"]
    assert len(snippet["text"]) < 250
    marks = [snippet["text"][start:end] for start, end in snippet["highlights"]]
    assert marks == ["osprey"]
    assert [hit["entryId"] for hit in await hits(tenant, '"an osprey"', by="entry")] == [other]
    assert len(await hits(tenant, "ospr*", by="entry")) == 3
    assert await hits(tenant, "ospr") == []
    assert await hits(tenant, "osprey heron") == []


async def test_a_search_can_be_narrowed(tenant: Tenant):
    red = await tenant.session(metadata={"team": "red", "tags": ["a", "b"], "other": 1})
    blue = await tenant.session(metadata={"team": "blue"})
    for session in (red, blue):
        await tenant.run(session, "echo: a kestrel")

    async def of(**query: Any) -> list[str]:
        return [hit["sessionId"] for hit in await hits(tenant, "kestrel", **query)]

    assert await of() == [blue, red]
    assert await of(metadata='{"team": "red"}') == [red]
    assert await of(metadata='{"team": "red", "tags": "b"}') == [red]
    assert await of(metadata='{"team": "red", "tags": "c"}') == []
    assert await of(sessionId=red) == [red]
    assert await of(sessionId=red, metadata='{"team": "blue"}') == []
    assert await of(type="message") == [blue, red]
    assert await of(type=["compaction", "branch_summary"]) == []
    answer = await tenant.client.get("/v1/search", params={"q": "x", "metadata": '{"other": 1}'})
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest")
    assert "team" in answer.json()["detail"]


async def test_a_lane_is_the_way_to_its_root(tenant: Tenant):
    session = await talked(tenant)
    one, _, two, *_ = [entry["id"] for entry in await tenant.entries(session)]

    async def on(lane: str, q: str) -> int:
        return len(await hits(tenant, q, by="entry", sessionId=session, lane=lane))

    assert [await on("main", "echo"), await on("side", "echo")] == [2, 2]
    assert [await on("main", "two"), await on("side", "two")] == [2, 0]
    assert [await on("main", "beside"), await on("side", "beside")] == [0, 2]
    (found,) = await hits(tenant, "echo one", by="entry", sessionId=session, lane="side")
    assert found["entryId"] == one
    assert found["entryId"] != two
    empty = await tenant.session()
    assert await hits(tenant, "one", sessionId=empty, lane="main") == []
    for query, code in (
        ({"sessionId": session, "lane": "nowhere"}, "UnknownLane"),
        ({"sessionId": new_id()}, "SessionNotFound"),
    ):
        answer = await tenant.client.get("/v1/search", params={"q": "one", **query})
        assert (answer.status_code, answer.json()["code"]) == (404, code)


@pytest.mark.parametrize("by", ["entry", "session"])
@pytest.mark.parametrize("inside", [False, True])
async def test_pages_hold_every_hit_once_in_order(tenant: Tenant, by: str, inside: bool):
    sessions = [await tenant.session() for _ in range(4)]
    for number, session in enumerate(sessions):
        # Equal scores within and between sessions, and a fork with the very same entries.
        await note(tenant, session, *("a plain wren",) * 3, "wren " * (number + 1))
    sessions.append(await forked(tenant, sessions[0]))
    query: dict[str, Any] = {"by": by, **({"sessionId": sessions[1]} if inside else {})}
    whole = await hits(tenant, "wren", limit=100, **query)
    wanted = {(True, "entry"): 4, (True, "session"): 1, (False, "entry"): 20, (False, "session"): 5}
    assert len(whole) == wanted[inside, by]
    assert len({(hit["sessionId"], hit["entryId"]) for hit in whole}) == len(whole)
    assert [hit["score"] for hit in whole] == sorted((h["score"] for h in whole), reverse=True)
    seen: list[dict[str, Any]] = []
    page = await search(tenant, "wren", limit=3, **query)
    while True:
        seen += page["data"]
        if "nextCursor" not in page:
            break
        assert len(page["data"]) == 3
        page = await search(tenant, "wren", limit=3, cursor=page["nextCursor"], **query)
    assert seen == whole


async def test_nobody_finds_what_is_another_tenants(tenant: Tenant):
    session, stranger = await tenant.session(metadata={"team": "red"}), await tenant.world.tenant()
    await tenant.run(session, "echo: a secret albatross")
    assert len(await hits(tenant, "albatross")) == 1
    for query in ({}, {"by": "entry"}, {"metadata": '{"team": "red"}'}):
        assert await hits(stranger, "albatross", **query) == []
    answer = await stranger.client.get(
        "/v1/search", params={"q": "albatross", "sessionId": session}
    )
    assert answer.status_code == 404
    # Nor with a place among the other's hits.
    first = await search(tenant, "albatross", by="entry", limit=1)
    assert await hits(stranger, "albatross", by="entry", cursor=first["nextCursor"]) == []


async def test_what_is_deleted_is_not_found_and_a_fork_is(tenant: Tenant):
    session = await tenant.session()
    await tenant.run(session, "echo: a plover")
    copy = await forked(tenant, session)
    found = await hits(tenant, "plover")
    assert {hit["sessionId"] for hit in found} == {session, copy}
    narrowed = await hits(tenant, "plover", metadata=f'{{"parentSessionId": "{session}"}}')
    assert [hit["sessionId"] for hit in narrowed] == [copy]
    assert (await tenant.client.delete(f"/v1/sessions/{session}")).status_code == 204
    answer = await tenant.client.get("/v1/search", params={"q": "plover"})
    assert [hit["sessionId"] for hit in answer.json()["data"]] == [copy]


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"q": ""},
        {"q": "   "},
        {"q": "!?*"},
        {"q": '""'},
        {"q": "a\0b"},
        {"q": "x" * 1_001},
        {"q": "x", "limit": "0"},
        {"q": "x", "limit": "101"},
        {"q": "x", "by": "lane"},
        {"q": "x", "type": "note"},
        {"q": "x", "lane": "main"},
        {"q": "x", "sessionId": "nonsense"},
        {"q": "x", "metadata": "[]"},
        {"q": "x", "metadata": "{"},
        {"q": "x", "metadata": '{"unknown": 1}'},
        {"q": "x", "cursor": "nonsense"},
        {"q": "x", "cursor": "W10"},
        {"q": "x", "cursor": "WzFlMzAwLDEsIngiLCJ5Il0"},
    ],
)
async def test_a_search_that_makes_no_sense_is_refused(tenant: Tenant, query: dict[str, str]):
    answer = await tenant.client.get("/v1/search", params=query)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] in ("InvalidRequest", "InvalidCursor")


@pytest.mark.parametrize(
    "q",
    ["' OR 1=1 --", "a & b | !c", "x:*", "<-> y", "(((z", "%_\\z", "認証", "é" * 900, "a " * 400],
)
async def test_whatever_is_typed_is_looked_for(tenant: Tenant, q: str):
    for by in ("entry", "session"):
        assert await hits(tenant, q, by=by) == []
