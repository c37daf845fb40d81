"""Sessions over HTTP: create, list, read, change, delete."""

from __future__ import annotations

import asyncio

import pytest

from harness.environment import Environment
from tests.app import tools
from tests.app.kit import Tenant, until
from tests.app.test_operations import hold, new_id

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_session_is_made_and_read_back(tenant: Tenant):
    body = {"name": "first", "metadata": {"team": "support", "tags": ["a", 1, None]}}
    made = await tenant.client.post("/v1/sessions", json=body)
    assert made.status_code == 201
    session = made.json()
    assert session["name"] == "first"
    assert session["metadata"] == body["metadata"]
    assert session["messageCount"] == 0
    assert made.headers["location"] == f"/v1/sessions/{session['id']}"
    assert (await tenant.client.get(made.headers["location"])).json() == session


async def test_a_session_may_bring_its_id_once(tenant: Tenant):
    wanted = Environment.system().ids.next()
    assert await tenant.session(id=wanted.upper()) == wanted
    again = await tenant.client.post("/v1/sessions", json={"id": wanted})
    assert (again.status_code, again.json()["code"]) == (409, "SessionExists")


async def test_a_session_id_that_another_tenant_has_is_taken_too(tenant: Tenant):
    stranger = await tenant.world.tenant()
    wanted = await tenant.session()
    answer = await stranger.client.post("/v1/sessions", json={"id": wanted})
    assert (answer.status_code, answer.json()["code"]) == (409, "SessionExists")


async def test_pages_hold_every_session_once_newest_first(tenant: Tenant):
    made = [await tenant.session(name=str(number)) for number in range(7)]
    found: list[str] = []
    cursor: str | None = None
    while True:
        query = {"limit": "3", **({} if cursor is None else {"cursor": cursor})}
        page = (await tenant.client.get("/v1/sessions", params=query)).json()
        found += [session["id"] for session in page["data"]]
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert found == list(reversed(made))


async def test_sessions_are_listed_by_agent_and_by_what_their_metadata_contains(tenant: Tenant):
    red = await tenant.session(agent="painter", metadata={"colour": "red", "size": {"w": 1}})
    await tenant.session(agent="other", metadata={"colour": "blue"})

    async def ids(**query: str) -> list[str]:
        answer = await tenant.client.get("/v1/sessions", params=query)
        assert answer.status_code == 200, answer.text
        return [session["id"] for session in answer.json()["data"]]

    assert await ids(metadata='{"colour": "red"}') == [red]
    assert await ids(metadata='{"size": {"w": 1}}') == [red]
    assert await ids(metadata='{"colour": "green"}') == []
    assert await ids(agent="painter") == [red]
    assert await ids(agent="nobody") == []


async def test_a_session_is_renamed_and_its_metadata_replaced(tenant: Tenant):
    session = await tenant.session(name="old", metadata={"a": 1})
    path = f"/v1/sessions/{session}"
    answer = await tenant.client.patch(path, json={"name": "new"})
    assert answer.status_code == 200, answer.text
    changed = answer.json()
    assert (changed["name"], changed["metadata"]) == ("new", {"a": 1})
    changed = (await tenant.client.patch(path, json={"metadata": {"b": 2}})).json()
    assert (changed["name"], changed["metadata"]) == ("new", {"b": 2})
    changed = (await tenant.client.patch(path, json={"name": None})).json()
    assert "name" not in changed
    assert (await tenant.client.patch(path, json={})).json() == changed


async def test_a_deleted_session_is_gone_and_its_receipts_stay(tenant: Tenant):
    session = await tenant.session()
    receipt = await tenant.run(session, "echo: to be forgotten")
    answer = await tenant.client.delete(f"/v1/sessions/{session}")
    assert answer.status_code == 204, answer.text
    assert (await tenant.client.get(f"/v1/sessions/{session}")).status_code == 404
    assert (await tenant.client.delete(f"/v1/sessions/{session}")).status_code == 404
    kept = await tenant.done(receipt["id"])
    assert kept["outcome"] == "completed"
    assert "finalMessage" not in kept


async def test_a_session_with_an_open_run_is_not_deleted(tenant: Tenant):
    session = await tenant.session()
    gate = new_id()
    operation = await tenant.submit(session, hold(gate))
    await until(lambda: tools.started[gate] == 1)
    answer = await tenant.client.delete(f"/v1/sessions/{session}")
    assert (answer.status_code, answer.json()["code"]) == (409, "SessionInUse")
    tools.open_gate(gate)
    assert (await tenant.done(operation))["outcome"] == "completed"


async def test_one_idempotency_key_makes_one_session(tenant: Tenant):
    async def post(body: dict[str, object]):
        return await tenant.client.post(
            "/v1/sessions", json=body, headers={"Idempotency-Key": "key 1"}
        )

    answers = await asyncio.gather(*(post({"name": "once"}) for _ in range(10)))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    replayed = [answer.headers.get("idempotency-replayed") for answer in answers]
    assert replayed.count("true") == 9
    assert len({answer.headers["location"] for answer in answers}) == 1
    other = await post({"name": "another"})
    assert (other.status_code, other.json()["code"]) == (409, "IdempotencyKeyReused")
    stranger = await tenant.world.tenant()
    theirs = await stranger.client.post(
        "/v1/sessions", json={"name": "theirs"}, headers={"Idempotency-Key": "key 1"}
    )
    assert theirs.status_code == 201
    assert "idempotency-replayed" not in theirs.headers


@pytest.mark.parametrize(
    "body",
    [
        {"name": 1},
        {"name": "x" * 501},
        {"name": "nul \0"},
        {"id": "nonsense"},
        {"id": "7b5a3d9e-0000-4000-8000-000000000000"},
        {"agent": ""},
        {"metadata": []},
        {"metadata": {"nul": "\0"}},
        {"metadata": {"x": "y" * 20_000}},
        {"unknown": 1},
        [],
        "text",
    ],
)
async def test_a_session_that_makes_no_sense_is_refused(tenant: Tenant, body: object):
    answer = await tenant.client.post("/v1/sessions", json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest")
    assert answer.json()["errors"]


@pytest.mark.parametrize(
    "query",
    [
        {"limit": "0"},
        {"limit": "1001"},
        {"limit": "x"},
        {"cursor": "nonsense"},
        {"cursor": "W10"},
        {"cursor": "WzEsICJ4Il0"},
        {"metadata": "[]"},
        {"metadata": "{"},
        {"metadata": '{"a": "\\u0000"}'},
        {"agent": "\0"},
    ],
)
async def test_a_list_that_makes_no_sense_is_refused(tenant: Tenant, query: dict[str, str]):
    answer = await tenant.client.get("/v1/sessions", params=query)
    assert answer.status_code == 422, answer.text
    assert answer.json()["code"] in ("InvalidRequest", "InvalidCursor")
