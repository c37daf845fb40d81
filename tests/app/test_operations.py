"""Operations over HTTP: one admission each, receipts, waiting, aborting, two lanes at once."""

from __future__ import annotations

import asyncio
import json

import pytest

from app.http import receipts
from harness.environment import Environment
from harness.errors import StorageError
from tests.app import tools
from tests.app.kit import Tenant, until

pytestmark = pytest.mark.asyncio(loop_scope="module")


def new_id() -> str:
    return Environment.system().ids.next()


def hold(gate: str) -> str:
    return "tool: " + json.dumps({"name": "hold", "arguments": {"gate": gate}})


async def test_a_prompt_is_accepted_and_runs_to_its_receipt(tenant: Tenant):
    session = await tenant.session()
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/lanes/main/operations",
        json={"kind": "prompt", "prompt": "echo: hello there"},
    )
    assert answer.status_code == 202
    admission = answer.json()
    assert admission["kind"] == "run"
    location = answer.headers["location"]
    assert location == f"/v1/operations/{admission['operationId']}"
    receipt = (await tenant.client.get(f"{location}?wait=30")).json()
    assert (receipt["status"], receipt["outcome"]) == ("done", "completed")
    assert receipt["finalMessage"]["content"][0]["text"] == "hello there"
    assert receipt["sessionId"] == session
    assert receipt["finishedAt"] >= receipt["acceptedAt"]
    roles = [entry["message"]["role"] for entry in await tenant.entries(session)]
    assert roles == ["user", "assistant"]


async def test_prefer_wait_answers_with_the_receipt_or_the_admission(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/operations"
    answer = await tenant.client.post(
        path, json={"kind": "prompt", "prompt": "echo: x"}, headers={"Prefer": "wait=30"}
    )
    assert (answer.status_code, answer.json()["outcome"]) == (200, "completed")
    assert answer.headers["preference-applied"] == "wait=30"
    gate = new_id()
    answer = await tenant.client.post(
        path, json={"kind": "prompt", "prompt": hold(gate)}, headers={"Prefer": "wait=0"}
    )
    assert answer.status_code == 202
    tools.open_gate(gate)
    assert (await tenant.done(answer.json()["operationId"]))["outcome"] == "completed"


async def test_an_outcome_that_cannot_be_told_hides_no_acceptance(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
):
    async def failing(*_arguments: object) -> None:
        raise StorageError("the database refused a read")

    monkeypatch.setattr(receipts, "find_receipt", failing)
    session = await tenant.session()
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/lanes/main/operations",
        json={"kind": "prompt", "prompt": "echo: x"},
        headers={"Prefer": "wait=30"},
    )
    monkeypatch.undo()
    assert answer.status_code == 202
    operation = answer.json()["operationId"]
    assert answer.headers["location"] == f"/v1/operations/{operation}"
    assert (await tenant.done(operation))["outcome"] == "completed"


async def test_twenty_posts_with_one_operation_id_make_one_operation(tenant: Tenant):
    session = await tenant.session()
    operation = new_id()
    body = {"kind": "prompt", "prompt": "echo: once", "operationId": operation}

    async def post(number: int):
        async with tenant.via(number % 2) as client:
            return await client.post(f"/v1/sessions/{session}/lanes/main/operations", json=body)

    answers = await asyncio.gather(*(post(number) for number in range(20)))
    assert {answer.status_code for answer in answers} == {202}, [a.text for a in answers]
    assert {answer.json()["operationId"] for answer in answers} == {operation}
    assert (await tenant.done(operation))["outcome"] == "completed"
    # Later, too, it is the same operation.
    assert (await post(0)).json()["operationId"] == operation
    assert len(await tenant.entries(session)) == 2
    listed = (await tenant.client.get(f"/v1/operations?sessionId={session}")).json()["data"]
    assert [receipt["id"] for receipt in listed] == [operation]


async def test_an_operation_id_is_known_also_after_later_operations(tenant: Tenant):
    session = await tenant.session()
    operation = new_id()
    path = f"/v1/sessions/{session}/lanes/main/operations"
    body = {"kind": "prompt", "prompt": "echo: once", "operationId": operation}
    assert (await tenant.client.post(path, json=body)).status_code == 202
    await tenant.done(operation)
    await tenant.run(session, "echo: later")
    again = await tenant.client.post(path, json=body)
    assert (again.status_code, again.json()["operationId"]) == (202, operation)
    assert len(await tenant.entries(session)) == 4


async def test_one_idempotency_key_makes_one_operation(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/operations"

    async def post(number: int, prompt: str = "echo: once"):
        async with tenant.via(number % 2) as client:
            return await client.post(
                path,
                json={"kind": "prompt", "prompt": prompt},
                headers={"Idempotency-Key": f"for {session}"},
            )

    answers = await asyncio.gather(*(post(number) for number in range(10)))
    assert {answer.status_code for answer in answers} == {202}, [a.text for a in answers]
    assert len({answer.json()["operationId"] for answer in answers}) == 1
    await tenant.done(answers[0].json()["operationId"])
    again = await post(0)
    assert again.headers["idempotency-replayed"] == "true"
    assert again.json()["operationId"] == answers[0].json()["operationId"]
    assert len(await tenant.entries(session)) == 2
    other = await post(0, "echo: something else")
    assert (other.status_code, other.json()["code"]) == (409, "IdempotencyKeyReused")


async def test_a_rejected_request_does_not_use_up_its_idempotency_key(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/operations"
    gate = new_id()
    running = await tenant.submit(session, hold(gate))
    body = {"kind": "prompt", "prompt": "echo: again"}
    headers = {"Idempotency-Key": f"rejected in {session}"}
    busy = await tenant.client.post(path, json=body, headers=headers)
    assert (busy.status_code, busy.json()["code"]) == (409, "LaneBusy")
    tools.open_gate(gate)
    await tenant.done(running)
    accepted = await tenant.client.post(path, json=body, headers=headers)
    assert accepted.status_code == 202
    assert "idempotency-replayed" not in accepted.headers
    assert (await tenant.done(accepted.json()["operationId"]))["outcome"] == "completed"


async def test_a_busy_lane_says_with_what(tenant: Tenant):
    session = await tenant.session()
    gate = new_id()
    running = await tenant.submit(session, hold(gate))
    answers = await asyncio.gather(
        *(
            tenant.client.post(
                f"/v1/sessions/{session}/lanes/main/operations",
                json={"kind": "prompt", "prompt": "echo: no"},
            )
            for _ in range(3)
        )
    )
    for answer in answers:
        problem = answer.json()
        assert answer.status_code == 409
        assert problem["type"] == "urn:laneway:lane-busy"
        assert (problem["code"], problem["lane"]) == ("LaneBusy", "main")
        assert (problem["operationId"], problem["operationKind"]) == (running, "run")
    tools.open_gate(gate)
    await tenant.done(running)


async def test_two_prompts_at_once_make_one_admission(tenant: Tenant):
    session = await tenant.session()
    gate = new_id()
    body = {"kind": "prompt", "prompt": hold(gate)}

    async def post(number: int):
        async with tenant.via(number) as client:
            return await client.post(f"/v1/sessions/{session}/lanes/main/operations", json=body)

    answers = await asyncio.gather(post(0), post(1))
    assert sorted(answer.status_code for answer in answers) == [202, 409]
    tools.open_gate(gate)
    (accepted,) = [answer for answer in answers if answer.status_code == 202]
    await tenant.done(accepted.json()["operationId"])


async def test_two_lanes_of_a_session_run_at_the_same_time(tenant: Tenant):
    session = await tenant.session()
    await tenant.client.post(f"/v1/sessions/{session}/lanes", json={"name": "side", "at": None})
    gates = {"main": new_id(), "side": new_id()}
    operations = {lane: await tenant.submit(session, hold(gates[lane]), lane) for lane in gates}
    # Both tools run before either may end.
    await until(lambda: all(tools.started[gate] for gate in gates.values()))
    for gate in gates.values():
        tools.open_gate(gate)
    for operation in operations.values():
        assert (await tenant.done(operation))["outcome"] == "completed"
    assert all(tools.started[gate] == 1 for gate in gates.values())


@pytest.mark.parametrize("how", ["lane", "operation"])
async def test_an_abort_from_another_process_ends_a_run(tenant: Tenant, how: str):
    session = await tenant.session()
    gate = new_id()
    operation = await tenant.submit(session, hold(gate))
    await until(lambda: tools.started[gate] == 1)
    path = (
        f"/v1/sessions/{session}/lanes/main/abort"
        if how == "lane"
        else f"/v1/operations/{operation}/abort"
    )
    async with tenant.via(1) as client:
        aborted = await client.post(path)
        assert aborted.status_code == 202, aborted.text
        assert aborted.json()["operationId"] == operation
        assert aborted.json()["newlyRequested"]
    tools.open_gate(gate)
    assert (await tenant.done(operation))["outcome"] == "aborted"
    late = await tenant.client.post(f"/v1/operations/{operation}/abort")
    assert (late.status_code, late.json()["code"]) == (409, "OperationMismatch")
    idle = await tenant.client.post(f"/v1/sessions/{session}/lanes/main/abort")
    assert (idle.status_code, idle.json()["code"]) == (409, "NoActiveOperation")


async def test_a_client_that_goes_away_cancels_nothing(tenant: Tenant):
    session = await tenant.session()
    gate = new_id()
    operation = new_id()
    body = {"kind": "prompt", "prompt": hold(gate), "operationId": operation}
    waiting = asyncio.create_task(
        tenant.client.post(
            f"/v1/sessions/{session}/lanes/main/operations",
            json=body,
            headers={"Prefer": "wait=60"},
        )
    )
    await until(lambda: tools.started[gate] == 1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    tools.open_gate(gate)
    assert (await tenant.done(operation))["outcome"] == "completed"


async def test_a_failed_run_says_why(tenant: Tenant):
    session = await tenant.session()
    receipt = await tenant.run(session, 'fail: {"message": "no such model", "kind": "terminal"}')
    assert receipt["outcome"] == "failed"
    assert "no such model" in receipt["error"]["message"]


async def test_a_lane_navigates_and_compacts_over_http(tenant: Tenant):
    session = await tenant.session()
    await tenant.run(session, "echo: one")
    first = (await tenant.entries(session))[0]["id"]
    path = f"/v1/sessions/{session}/lanes/main/operations"
    answer = await tenant.client.post(
        path,
        json={"kind": "navigation", "targetId": first},
        headers={"Prefer": "wait=30"},
    )
    assert (answer.status_code, answer.json()["outcome"]) == (200, "completed")
    lane = (await tenant.client.get(f"/v1/sessions/{session}/lanes/main")).json()
    assert lane["leafId"] == first
    answer = await tenant.client.post(path, json={"kind": "navigation", "targetId": new_id()})
    assert (answer.status_code, answer.json()["code"]) == (422, "UnknownTarget")
    answer = await tenant.client.post(path, json={"kind": "compaction"})
    assert (answer.status_code, answer.json()["code"]) == (409, "NothingToCompact")
    for kind, code in (("skill", "UnknownSkill"), ("prompt_template", "UnknownTemplate")):
        answer = await tenant.client.post(path, json={"kind": kind, "name": "nobody"})
        assert (answer.status_code, answer.json()["code"]) == (422, code)


async def test_resume_needs_something_to_resume(tenant: Tenant):
    session = await tenant.session()
    answer = await tenant.client.post(f"/v1/sessions/{session}/lanes/main/resume")
    assert (answer.status_code, answer.json()["code"]) == (409, "NothingToResume")
    gate = new_id()
    operation = await tenant.submit(session, hold(gate))
    answer = await tenant.client.post(f"/v1/sessions/{session}/lanes/main/resume")
    assert (answer.status_code, answer.json()["current"]["id"]) == (202, operation)
    tools.open_gate(gate)
    await tenant.done(operation)


async def test_receipts_are_listed_page_by_page(tenant: Tenant):
    session = await tenant.session()
    made = [(await tenant.run(session, f"echo: {number}"))["id"] for number in range(5)]
    found: list[str] = []
    query = {"limit": "2", "sessionId": session, "lane": "main", "status": "done"}
    while True:
        page = (await tenant.client.get("/v1/operations", params=query)).json()
        found += [receipt["id"] for receipt in page["data"]]
        if "nextCursor" not in page:
            break
        query["cursor"] = page["nextCursor"]
    assert found == list(reversed(made))
    other = await tenant.client.get("/v1/operations", params={"lane": "other"})
    assert other.json() == {"data": []}
    answer = await tenant.client.get("/v1/operations", params={"status": "nonsense"})
    assert answer.status_code == 422


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"kind": "nonsense"},
        {"kind": "prompt"},
        {"kind": "prompt", "prompt": 1},
        {"kind": "prompt", "prompt": ""},
        {"kind": "prompt", "prompt": "x", "operationId": "nonsense"},
        {"kind": "prompt", "prompt": "x", "unknown": 1},
        {"kind": "prompt", "prompt": {"role": "user"}},
        {"kind": "prompt", "prompt": {"role": "nobody", "content": "x", "timestamp": 1}},
        {"kind": "navigation"},
        {"kind": "navigation", "targetId": 5},
        {"kind": "prompt_template", "name": "x", "args": "x"},
        [],
        1,
    ],
)
async def test_a_request_that_makes_no_sense_is_refused(tenant: Tenant, body: object):
    session = await tenant.session()
    answer = await tenant.client.post(f"/v1/sessions/{session}/lanes/main/operations", json=body)
    assert answer.status_code == 422, answer.text
    assert await tenant.entries(session) == []
