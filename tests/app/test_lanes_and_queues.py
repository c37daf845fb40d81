"""Lanes, their configuration and their queues over HTTP."""

from __future__ import annotations

import json

import pytest

from tests.app import tools
from tests.app.kit import Tenant, until
from tests.app.test_operations import hold, new_id

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_new_session_has_its_main_lane(tenant: Tenant):
    session = await tenant.session()
    lanes = (await tenant.client.get(f"/v1/sessions/{session}/lanes")).json()["data"]
    assert lanes == [{"name": "main", "leafId": None, "operation": None}]
    lane = (await tenant.client.get(f"/v1/sessions/{session}/lanes/main")).json()
    assert lane["lane"] == "main"
    assert lane["model"] == {"provider": "scripted", "modelId": "echo"}
    assert lane["current"] is None


async def test_a_lane_is_created_at_an_entry_and_goes_its_own_way(tenant: Tenant):
    session = await tenant.session()
    await tenant.run(session, "echo: root")
    first = (await tenant.entries(session))[0]["id"]
    path = f"/v1/sessions/{session}/lanes"
    made = await tenant.client.post(path, json={"name": "side: ü", "at": first})
    assert (made.status_code, made.json()["leafId"]) == (201, first)
    await tenant.run(session, "echo: other", lane="side: ü")
    branch = (await tenant.client.get(f"{path}/side: ü/branch")).json()["data"]
    assert [entry["message"]["role"] for entry in branch] == ["assistant", "user", "user"]
    main = (await tenant.client.get(f"{path}/main/branch")).json()["data"]
    assert [entry["message"]["role"] for entry in main] == ["assistant", "user"]
    again = await tenant.client.post(path, json={"name": "side: ü"})
    assert (again.status_code, again.json()["code"]) == (409, "LaneExists")
    assert len((await tenant.client.get(path)).json()["data"]) == 2


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "InvalidRequest"),
        ("x" * 201, "InvalidRequest"),
        ("a/b", "InvalidLane"),
        ("..", "InvalidLane"),
        ("nul \0", "InvalidLane"),
        ("\ud800", "InvalidRequest"),
        ("line\n", "InvalidLane"),
    ],
)
async def test_a_lane_name_that_makes_no_sense_is_refused(tenant: Tenant, name: str, code: str):
    session = await tenant.session()
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/lanes",
        content=json.dumps({"name": name}),
        headers={"Content-Type": "application/json"},
    )
    assert (answer.status_code, answer.json()["code"]) == (422, code)


async def test_a_lane_is_configured(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main"
    changed = await tenant.client.patch(
        path, json={"thinkingLevel": "high", "activeTools": ["hold"]}
    )
    assert changed.status_code == 200, changed.text
    lane = (await tenant.client.get(path)).json()
    assert lane == changed.json()
    assert (lane["thinkingLevel"], lane["activeTools"]) == ("high", ["hold"])
    lane = (await tenant.client.patch(path, json={"activeTools": []})).json()
    assert (lane["thinkingLevel"], lane["activeTools"]) == ("high", [])


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"model": {"provider": "no", "modelId": "body"}}, "UnknownModel"),
        ({"model": "gpt"}, "InvalidRequest"),
        ({"model": None}, "InvalidRequest"),
        ({"thinkingLevel": "deep"}, "InvalidRequest"),
        ({"activeTools": ["a", "a"]}, "InvalidRequest"),
        ({"activeTools": "a"}, "InvalidRequest"),
        ({"unknown": 1}, "InvalidRequest"),
    ],
)
async def test_a_configuration_that_makes_no_sense_is_refused(
    tenant: Tenant, body: object, code: str
):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main"
    before = (await tenant.client.get(path)).json()
    answer = await tenant.client.patch(path, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    after = (await tenant.client.get(path)).json()
    assert after["model"] == before["model"]


async def test_messages_are_queued_shown_taken_back_and_taken(tenant: Tenant):
    session = await tenant.session()
    lane = f"/v1/sessions/{session}/lanes/main"
    gate = new_id()
    operation = await tenant.submit(session, hold(gate))
    await until(lambda: tools.started[gate] == 1)
    queued: dict[str, str] = {}
    async with tenant.via(1) as client:
        for where in ("steer", "follow-up", "next-run"):
            answer = await client.post(f"{lane}/{where}", json={"message": f"to {where}"})
            assert answer.status_code == 202, answer.text
            queued[where] = answer.json()["entryId"]
        regret = (await client.post(f"{lane}/steer", json={"message": "regret"})).json()["entryId"]
    shown = (await tenant.client.get(f"{lane}/queue")).json()
    assert [item["entryId"] for item in shown["steer"]] == [queued["steer"], regret]
    assert [item["message"]["content"] for item in shown["followUp"]] == ["to follow-up"]
    assert [item["message"]["content"] for item in shown["nextRun"]] == ["to next-run"]
    for expected in ("cancelled", "not_found"):
        answer = await tenant.client.delete(f"{lane}/queue/{regret}")
        assert answer.json() == {"kind": expected}
    tools.open_gate(gate)
    await tenant.done(operation)
    said = [
        entry["message"]["content"]
        for entry in await tenant.entries(session)
        if entry["message"]["role"] == "user"
    ]
    assert said[1:] == ["to steer", "to follow-up"]
    taken = await tenant.client.delete(f"{lane}/queue/{queued['steer']}")
    assert taken.json() == {"kind": "already_consumed"}
    await tenant.run(session, "echo: next")
    users = [e for e in await tenant.entries(session) if e["message"]["role"] == "user"]
    assert [entry["message"]["content"] for entry in users][-2:] == ["to next-run", "echo: next"]
    assert (await tenant.client.get(f"{lane}/queue")).json()["nextRun"] == []


async def test_an_idle_lane_takes_no_steering(tenant: Tenant):
    session = await tenant.session()
    lane = f"/v1/sessions/{session}/lanes/main"
    for where in ("steer", "follow-up"):
        answer = await tenant.client.post(f"{lane}/{where}", json={"message": "x"})
        assert (answer.status_code, answer.json()["code"]) == (409, "NoActiveRun")
    for body in ({"message": ""}, {"message": {"role": "user", "content": "", "timestamp": 1}}):
        answer = await tenant.client.post(f"{lane}/next-run", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidMessage")


async def test_a_queued_message_has_one_idempotency_key(tenant: Tenant):
    session = await tenant.session()
    lane = f"/v1/sessions/{session}/lanes/main"
    headers = {"Idempotency-Key": f"queue {session}"}
    first = await tenant.client.post(f"{lane}/next-run", json={"message": "x"}, headers=headers)
    again = await tenant.client.post(f"{lane}/next-run", json={"message": "x"}, headers=headers)
    assert first.json() == again.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert len((await tenant.client.get(f"{lane}/queue")).json()["nextRun"]) == 1
    for where, body in (("next-run", {"message": "y"}), ("steer", {"message": "x"})):
        other = await tenant.client.post(f"{lane}/{where}", json=body, headers=headers)
        assert (other.status_code, other.json()["code"]) == (409, "IdempotencyKeyReused")


async def test_a_lane_that_does_not_exist_is_not_found(tenant: Tenant):
    session = await tenant.session()
    lane = f"/v1/sessions/{session}/lanes/nobody"
    for method, path, body in (
        ("GET", lane, None),
        ("GET", f"{lane}/queue", None),
        ("GET", f"{lane}/branch", None),
        ("GET", f"{lane}/snapshot", None),
        ("PATCH", lane, {"thinkingLevel": "low"}),
        ("POST", f"{lane}/steer", {"message": "x"}),
        ("POST", f"{lane}/abort", None),
        ("POST", f"{lane}/operations", {"kind": "prompt", "prompt": "x"}),
    ):
        answer = await tenant.client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "UnknownLane"), (method, path)
