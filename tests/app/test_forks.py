"""Sessions forked over HTTP."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.app import tools
from tests.app.copying import fork, forked, talked
from tests.app.kit import Tenant, until
from tests.app.test_operations import hold, new_id

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_fork_copies_what_was_asked_for(tenant: Tenant):
    session = await talked(tenant)
    entries = await tenant.entries(session)
    one, answer_one, two, answer_two, *side = [entry["id"] for entry in entries]
    assert len(side) == 2

    async def copied(**body: Any) -> list[str]:
        made = await forked(tenant, session, **body)
        found = await tenant.entries(made)
        assert found == [entry for entry in entries if entry["id"] in {e["id"] for e in found}]
        return [entry["id"] for entry in found]

    assert await copied() == [one, answer_one, two, answer_two]
    assert await copied(position="before") == [one, answer_one, two]
    assert await copied(entryId=two) == [one, answer_one, two]
    assert await copied(entryId=two.upper(), position="before") == [one, answer_one]
    assert await copied(entryId=side[1]) == [one, *side]
    assert await copied(entryId=one, position="before") == []
    assert await copied(scope="tree") == [entry["id"] for entry in entries]


async def test_a_fork_is_a_session_of_its_own(tenant: Tenant):
    session = await talked(tenant)
    before = await tenant.entries(session)
    answer = await fork(tenant, session, scope="tree")
    view = answer.json()
    assert (view["parentSessionId"], view["name"], view["metadata"], view["agent"]) == (
        session,
        "talk",
        {"team": "red"},
        "helper",
    )
    assert (view["messageCount"], view["usage"]["totalTokens"]) == (6, 0)
    lanes = (await tenant.client.get(f"/v1/sessions/{view['id']}/lanes")).json()["data"]
    assert [lane["name"] for lane in lanes] == ["main", "side"]
    ledger = (await tenant.client.get(f"/v1/sessions/{view['id']}/usage")).json()
    assert ledger["data"] == []
    receipts = await tenant.client.get("/v1/operations", params={"sessionId": view["id"]})
    assert receipts.json()["data"] == []
    assert (await tenant.run(view["id"], "echo: on"))["outcome"] == "completed"
    assert await tenant.entries(session) == before
    assert (await tenant.client.delete(f"/v1/sessions/{session}")).status_code == 204
    assert len(await tenant.entries(view["id"])) == 8


async def test_a_session_is_forked_and_exported_while_it_is_driven(tenant: Tenant):
    session, gate = await tenant.session(), new_id()
    operation = await tenant.submit(session, hold(gate))
    await until(lambda: tools.started[gate] == 1)
    copy = await forked(tenant, session)
    async with tenant.via(1) as other:
        answer = await other.get(f"/v1/sessions/{session}/export")
    records = [json.loads(line) for line in answer.content.splitlines()[1:]]
    assert any(record.get("namespace") == "pi.op.state" for record in records)
    # The question and the call, which is still held: nothing after it, and nothing of the work.
    roles = [entry["message"]["role"] for entry in await tenant.entries(copy)]
    assert roles == ["user", "assistant"]
    assert (await tenant.run(copy, "echo: meanwhile"))["outcome"] == "completed"
    tools.open_gate(gate)
    assert (await tenant.done(operation))["outcome"] == "completed"
    assert len(await tenant.entries(session)) == 4


async def test_one_key_makes_one_fork_however_often_it_is_sent(tenant: Tenant):
    session = await talked(tenant)
    other = tenant.via(1)
    path, headers = f"/v1/sessions/{session}/fork", {"Idempotency-Key": "fork 1"}
    answers = await asyncio.gather(
        *(
            client.post(path, json={"scope": "tree"}, headers=headers)
            for client in (tenant.client, other) * 3
        )
    )
    await other.aclose()
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.text for answer in answers}) == 1
    assert len({answer.headers["location"] for answer in answers}) == 1
    assert [a.headers.get("idempotency-replayed") for a in answers].count("true") == 5
    listed = (await tenant.client.get("/v1/sessions")).json()["data"]
    assert len(listed) == 2
    changed = await fork(tenant, session, "fork 1", scope="branch")
    assert (changed.status_code, changed.json()["code"]) == (409, "IdempotencyKeyReused")


async def test_a_fork_of_a_given_id_is_made_once(tenant: Tenant):
    session, wanted = await talked(tenant), new_id()
    answers = await asyncio.gather(*(fork(tenant, session, id=wanted.upper()) for _ in range(4)))
    assert {answer.status_code for answer in answers} == {201}
    assert {answer.json()["id"] for answer in answers} == {wanted}
    keyed = await fork(tenant, session, "mine", id=wanted)
    assert keyed.json() == answers[0].json()
    assert len((await tenant.client.get("/v1/sessions")).json()["data"]) == 2
    # Another session's id is taken, whoever has it.
    stranger = await tenant.world.tenant()
    for taken in (session, await tenant.session(), await stranger.session()):
        answer = await fork(tenant, session, id=taken)
        assert (answer.status_code, answer.json()["code"]) == (409, "SessionExists")


async def test_a_fork_at_no_entry_of_the_session_is_refused(tenant: Tenant):
    session = await tenant.session()
    stranger = await tenant.world.tenant()
    theirs = await talked(stranger)
    for entry in (new_id(), (await stranger.entries(theirs))[0]["id"]):
        answer = await fork(tenant, session, entryId=entry)
        assert (answer.status_code, answer.json()["code"]) == (422, "UnknownTarget")
    # What failed under a key may be tried again under it.
    for _ in range(2):
        assert (await fork(tenant, session, "again", entryId=new_id())).status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        {"scope": "forest"},
        {"scope": "tree", "entryId": "01997a3e-6f5c-7d2e-9a51-6b1f6a2f9c11"},
        {"scope": "tree", "position": "at"},
        {"position": "after"},
        {"entryId": "nonsense"},
        {"entryId": 5},
        {"id": "nonsense"},
        {"id": "7b5a3d9e-0000-4000-8000-000000000000"},
        {"unknown": 1},
        [],
        None,
    ],
)
async def test_a_fork_that_makes_no_sense_is_refused(tenant: Tenant, body: Any):
    session = await tenant.session()
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/fork",
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest"), answer.text
