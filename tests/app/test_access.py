"""Every route with no key, a wrong key, a key that may not, and another tenant's key."""

from __future__ import annotations

import httpx
import pytest

from tests.app.kit import Tenant, World, collect
from tests.app.routes import CALLS, OWN, PUBLIC, some_ids

pytestmark = pytest.mark.asyncio(loop_scope="module")


def operation_ids(world: World) -> set[str]:
    paths = world.contract.document["paths"].values()
    return {operation["operationId"] for path in paths for operation in path.values()}


async def test_the_table_of_routes_is_complete(world: World):
    assert operation_ids(world) == set(CALLS) | PUBLIC


async def test_nothing_is_said_without_a_key_that_works(world: World, tenant: Tenant):
    ids = await some_ids(tenant)
    wrong = tenant.key[:-1] + ("0" if tenant.key[-1] != "0" else "1")
    for presented in (None, wrong, "lw_nonsense", "x"):
        async with world.client(presented) as client:
            for operation, call in CALLS.items():
                answer = await call.send(client, ids)
                assert answer.status_code == 401, (operation, answer.text)
                assert answer.json()["code"] == "Unauthenticated"
                assert answer.headers["www-authenticate"] == "Bearer"


async def test_a_key_does_only_what_its_scopes_say(world: World, tenant: Tenant):
    ids = await some_ids(tenant)
    scopes = {"sessions:read", "sessions:write", "usage:read"}
    for lacking in scopes:
        key = await world.key(tenant.id, *(scopes - {lacking}))
        async with world.client(key) as client:
            for operation, call in CALLS.items():
                if call.scope != lacking:
                    continue
                answer = await call.send(client, ids)
                assert answer.status_code == 403, (operation, answer.text)
                assert answer.json()["scope"] == lacking


async def test_another_tenants_things_do_not_exist(world: World, tenant: Tenant):
    ids = await some_ids(tenant)
    stranger = await world.tenant()
    before = (await tenant.client.get(f"/v1/sessions/{ids['session']}")).json()
    for operation, call in CALLS.items():
        answer = await call.send(stranger.client, ids)
        if operation in OWN:
            assert answer.status_code < 300, (operation, answer.text)
            assert ids["session"] not in answer.text
            assert "secret" not in answer.text
        else:
            assert answer.status_code == 404, (operation, answer.text)
    assert (await tenant.client.get(f"/v1/sessions/{ids['session']}")).json() == before


async def test_another_tenants_ids_do_not_work_inside_an_own_session(world: World, tenant: Tenant):
    ids = await some_ids(tenant)
    stranger = await world.tenant()
    own = {**ids, "session": await stranger.session()}
    for operation in ("getEntry", "putLabel", "deleteLabel", "getOperation", "abortOperation"):
        method, path, body = CALLS[operation].filled(own)
        answer = await stranger.client.request(method, path, json=body)
        assert answer.status_code == 404, (operation, answer.text)
    for operation in ("scanBranch", "createLane"):
        method, path, body = CALLS[operation].filled(own)
        answer = await stranger.client.request(method, path, json=body)
        assert answer.status_code == 422, (operation, answer.text)
        assert answer.json()["code"] == "UnknownTarget"
    method, path, body = CALLS["cancelQueued"].filled(own)
    assert (await stranger.client.request(method, path)).json() == {"kind": "not_found"}


async def test_an_operation_id_of_another_tenant_starts_nothing_and_breaks_nothing(
    world: World, tenant: Tenant
):
    ids = await some_ids(tenant)
    stranger = await world.tenant()
    session = await stranger.session()
    answer = await stranger.client.post(
        f"/v1/sessions/{session}/lanes/main/operations",
        json={"kind": "prompt", "prompt": "echo: mine", "operationId": ids["operation"]},
    )
    assert answer.status_code == 409, answer.text
    assert (await stranger.run(session, "echo: mine"))["outcome"] == "completed"
    assert (await tenant.done(ids["operation"]))["outcome"] == "completed"


async def test_ids_that_are_no_ids_are_not_found(tenant: Tenant):
    ids = await some_ids(tenant)
    for name, codes in {
        "session": {"SessionNotFound"},
        "entry": {"EntryNotFound"},
        "operation": {"OperationNotFound"},
        "lane": {"UnknownLane"},
    }.items():
        for nonsense in ("nonsense", "%00", "%ED%A0%80", "0", "x" * 300, "'--"):
            for operation, call in CALLS.items():
                if f"{{{name}}}" not in call.path.partition("?")[0]:
                    continue
                answer = await call.send(tenant.client, {**ids, name: nonsense})
                assert answer.status_code == 404, (operation, nonsense, answer.text)
                assert answer.json()["code"] in codes


async def test_an_expired_and_a_revoked_key_stop_working(world: World, tenant: Tenant):
    now = world.apis[0].services.environment.clock.now_ms()
    expired = await world.key(tenant.id, "sessions:read", expires_at=now - 1)
    async with world.client(expired) as client:
        assert (await client.get("/v1/sessions")).status_code == 401
    key = await world.key(tenant.id, "sessions:read")
    catalog = world.apis[0].services.catalog
    assert await catalog.revoke_key(tenant.id, key.split("_")[1])
    async with world.client(key) as client:
        assert (await client.get("/v1/sessions")).status_code == 401


async def test_a_disabled_tenants_key_stops_working(world: World, tenant: Tenant):
    await world.apis[0].services.catalog.disable_tenant(tenant.id)
    answer = await tenant.client.get("/v1/sessions")
    assert answer.status_code == 401


async def test_an_unknown_path_and_method_are_problems(tenant: Tenant):
    answer = await tenant.client.get("/v1/nothing")
    assert (answer.status_code, answer.json()["code"]) == (404, "RouteNotFound")
    answer = await tenant.client.put("/v1/sessions")
    assert (answer.status_code, answer.json()["code"]) == (405, "MethodNotAllowed")
    assert answer.headers["allow"] == "GET, POST"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["requestId"] == answer.headers["x-request-id"]


async def test_health_needs_no_key(world: World):
    async with httpx.AsyncClient(base_url=world.apis[0].url) as client:
        assert (await client.get("/livez")).json() == {"status": "ok"}
        assert (await client.get("/readyz")).json() == {"status": "ready"}


async def test_a_stream_is_for_its_tenant(world: World, tenant: Tenant):
    ids = await some_ids(tenant)
    found = await collect(
        tenant.client, f"/v1/sessions/{ids['session']}/lanes/main/events", lambda _: True
    )
    assert [event.name for event in found] == ["snapshot"]
    stranger = await world.tenant()
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        await collect(stranger.client, f"/v1/sessions/{ids['session']}/events", lambda _: True)
