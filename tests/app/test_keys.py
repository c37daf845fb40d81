"""`Idempotency-Key` where a session's owner does the work: once, whatever becomes of those who were asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
import psycopg
import pytest

from harness.context import Context
from tests.app import tools
from tests.app.kit import Tenant, World, until
from tests.app.routes import CALLS
from tests.app.test_operations import hold, new_id
from workers.commands import Command, Reply
from workers.routing import OutcomeUnknown

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAID = "said under a key"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request that makes something, and how to count what it made."""

    path: str
    body: dict[str, Any]
    status: int = 202

    async def made(self, tenant: Tenant, session: str) -> int:
        """How many there are: queued, placed, recorded or created. What waits for a run's next
        checkpoint is not among them."""
        lane = f"/v1/sessions/{session}/lanes/main"
        shown = (await tenant.client.get(f"{lane}/queue")).json()
        queued = json.dumps(shown).count(SAID)
        placed = sum(SAID in json.dumps(entry) for entry in await tenant.entries(session))
        ledger = (await tenant.client.get(f"/v1/sessions/{session}/usage")).json()["data"]
        lanes = (await tenant.client.get(f"/v1/sessions/{session}/lanes")).json()["data"]
        recorded = sum(row["adjustment"] for row in ledger)
        return queued + placed + recorded + len(lanes) - 1


MESSAGE = {"role": "user", "content": SAID, "timestamp": 1}
REQUESTS = {
    "steer": Wanted("/lanes/main/steer", {"message": SAID}),
    "follow-up": Wanted("/lanes/main/follow-up", {"message": SAID}),
    "next-run": Wanted("/lanes/main/next-run", {"message": SAID}),
    "message": Wanted("/lanes/main/entries", {"type": "message", "message": MESSAGE}, 201),
    "custom": Wanted(
        "/lanes/main/entries", {"type": "custom", "customType": "x", "data": SAID}, 201
    ),
    "usage": Wanted("/usage", dict(CALLS["recordUsage"].body or {}), 201),
    "lane": Wanted("/lanes", {"name": "side", "at": None}, 201),
}
each_request = pytest.mark.parametrize("wanted", REQUESTS.values(), ids=REQUESTS)


async def post(
    client: httpx.AsyncClient, session: str, wanted: Wanted, key: str, **changes: Any
) -> httpx.Response:
    return await client.post(
        f"/v1/sessions/{session}{wanted.path}",
        json={**wanted.body, **changes},
        headers={"Idempotency-Key": key},
    )


async def held(tenant: Tenant, session: str) -> Callable[[], Awaitable[None]]:
    """A run that goes on until what this returns is called."""
    gate = new_id()
    operation = await tenant.submit(session, hold(gate))
    await until(lambda: tools.started[gate] == 1)

    async def end() -> None:
        tools.open_gate(gate)
        await tenant.done(operation)

    return end


@each_request
async def test_a_process_that_dies_between_the_commit_and_the_answer(
    tenant: Tenant, world: World, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
):
    session, key = await tenant.session(), new_id()
    end = await held(tenant, session)
    host = world.apis[0].services.host
    execute = host.execute

    async def dying(tenant_id: str, session_id: str, command: Command, context: Context) -> Reply:
        await execute(tenant_id, session_id, command, context)
        raise OutcomeUnknown("nobody hears the answer")

    with monkeypatch.context() as dead:
        dead.setattr(host, "execute", dying)
        lost = await post(tenant.client, session, wanted, key)
    assert lost.status_code == 503
    async with tenant.via(1) as other:
        again = await post(other, session, wanted, key)
        assert again.status_code == wanted.status, again.text
        assert again.headers["idempotency-replayed"] == "true"
        await end()
        later = await post(other, session, wanted, key)
    assert later.json() == again.json() or wanted.path == "/lanes"
    assert await wanted.made(tenant, session) == 1
    # It is the answer that the first request would have got.
    if wanted.path != "/lanes":
        made = next(iter(again.json().values()))
        assert made in await _ids(tenant, session)


async def _ids(tenant: Tenant, session: str) -> set[str]:
    shown = await tenant.client.get(f"/v1/sessions/{session}/lanes/main/queue")
    ledger = await tenant.client.get(f"/v1/sessions/{session}/usage")
    queued = [item["entryId"] for items in shown.json().values() for item in items]
    rows = [row["id"] for row in ledger.json()["data"]]
    return {*queued, *rows, *(entry["id"] for entry in await tenant.entries(session))}


@each_request
async def test_a_process_that_dies_before_the_commit(
    tenant: Tenant, world: World, monkeypatch: pytest.MonkeyPatch, wanted: Wanted
):
    session, key = await tenant.session(), new_id()
    end = await held(tenant, session)

    async def dying(*_arguments: object) -> Reply:
        raise OutcomeUnknown("it never got there")

    with monkeypatch.context() as dead:
        dead.setattr(world.apis[0].services.host, "execute", dying)
        assert (await post(tenant.client, session, wanted, key)).status_code == 503
    assert await wanted.made(tenant, session) == 0
    async with tenant.via(1) as other:
        again = await post(other, session, wanted, key)
    assert again.status_code == wanted.status, again.text
    assert "idempotency-replayed" not in again.headers
    await end()
    assert await wanted.made(tenant, session) == 1


@each_request
async def test_requests_at_once_through_two_processes(tenant: Tenant, wanted: Wanted):
    session, key = await tenant.session(), new_id()
    end = await held(tenant, session)
    async with tenant.via(1) as other:
        answers = await asyncio.gather(
            *(post((tenant.client, other)[n % 2], session, wanted, key) for n in range(8))
        )
    for answer in answers:
        if answer.status_code == 409:
            assert answer.json()["code"] == "RequestInProgress"
            assert answer.headers["retry-after"] == "1"
    answered = [answer.json() for answer in answers if answer.status_code == wanted.status]
    assert answered
    again = await post(tenant.client, session, wanted, key)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (wanted.status, "true")
    assert all(answer == again.json() for answer in answered) or wanted.path == "/lanes"
    await end()
    assert await wanted.made(tenant, session) == 1


@each_request
async def test_another_body_another_session_and_another_tenant(tenant: Tenant, wanted: Wanted):
    session, elsewhere, key = await tenant.session(), await tenant.session(), new_id()
    stranger = await tenant.world.tenant()
    theirs = await stranger.session()
    ends = [
        await held(tenant, session),
        await held(tenant, elsewhere),
        await held(stranger, theirs),
    ]
    first = await post(tenant.client, session, wanted, key)
    assert first.status_code == wanted.status
    changed = {"name": "other"} if wanted.path == "/lanes" else {"details": {"a": 1}}
    if wanted.path.startswith("/lanes/main"):
        changed = {"message": {**MESSAGE, "content": "other"}}
    if wanted.body.get("type") == "custom":
        changed = {"data": "other"}
    for refused in (
        await post(tenant.client, session, wanted, key, **changed),
        await post(tenant.client, elsewhere, wanted, key),
    ):
        assert (refused.status_code, refused.json()["code"]) == (409, "IdempotencyKeyReused")
    other = await post(stranger.client, theirs, wanted, key)
    assert other.status_code == wanted.status
    assert "idempotency-replayed" not in other.headers
    for end in ends:
        await end()
    assert await wanted.made(tenant, session) == await wanted.made(stranger, theirs) == 1
    assert await wanted.made(tenant, elsewhere) == 0


@pytest.mark.parametrize("name", ["steer", "follow-up"])
async def test_a_refused_request_may_be_sent_again_and_then_succeed(tenant: Tenant, name: str):
    session, key, wanted = await tenant.session(), new_id(), REQUESTS[name]
    for _ in range(2):
        refused = await post(tenant.client, session, wanted, key)
        assert (refused.status_code, refused.json()["code"]) == (409, "NoActiveRun")
    other = await post(tenant.client, session, wanted, key, message="something else")
    assert (other.status_code, other.json()["code"]) == (409, "IdempotencyKeyReused")
    end = await held(tenant, session)
    queued = await post(tenant.client, session, wanted, key)
    assert queued.status_code == 202
    assert "idempotency-replayed" not in queued.headers
    await end()
    # The lane is idle again; what was queued stays queued.
    again = await post(tenant.client, session, wanted, key)
    assert (again.status_code, again.json()) == (202, queued.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert await wanted.made(tenant, session) == 1


@pytest.mark.parametrize("name", ["steer", "follow-up", "next-run", "message"])
async def test_what_was_cancelled_is_not_queued_again(tenant: Tenant, name: str):
    session, key, wanted = await tenant.session(), new_id(), REQUESTS[name]
    end = await held(tenant, session)
    first = await post(tenant.client, session, wanted, key)
    lane = f"/v1/sessions/{session}/lanes/main"
    taken = await tenant.client.delete(f"{lane}/queue/{first.json()['entryId']}")
    assert taken.json() == {"kind": "cancelled"}
    again = await post(tenant.client, session, wanted, key)
    assert (again.status_code, again.json()) == (wanted.status, first.json())
    await end()
    assert await wanted.made(tenant, session) == 0


@each_request
async def test_after_the_session_was_deleted(tenant: Tenant, wanted: Wanted):
    session, key, unused = await tenant.session(), new_id(), new_id()
    end = await held(tenant, session)
    first = await post(tenant.client, session, wanted, key)
    await end()
    assert (await tenant.client.delete(f"/v1/sessions/{session}")).status_code == 204
    again = await post(tenant.client, session, wanted, key)
    if wanted.path == "/lanes":
        # A lane is answered as it is by then.
        assert (again.status_code, again.json()["code"]) == (404, "SessionNotFound")
    else:
        assert (again.status_code, again.json()) == (first.status_code, first.json())
    for _ in range(2):
        nothing = await post(tenant.client, session, wanted, unused)
        assert (nothing.status_code, nothing.json()["code"]) == (404, "SessionNotFound")


async def test_an_answer_that_an_earlier_release_kept(tenant: Tenant, world: World):
    session, key, wanted = await tenant.session(), new_id(), REQUESTS["next-run"]
    first = await post(tenant.client, session, wanted, key)
    with psycopg.connect(world.database.admin_dsn, autocommit=True) as admin:
        admin.execute(
            "UPDATE laneway.idempotency_keys SET status = 202, response = %s WHERE key = %s",
            (first.text, key),
        )
    again = await post(tenant.client, session, wanted, key)
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["idempotency-replayed"] == "true"
    assert await wanted.made(tenant, session) == 1
