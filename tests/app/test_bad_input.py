"""Foreign text through HTTP, there and back; bodies that are too large, too deep, or no JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.http.app import MAX_BODY_BYTES
from tests.app.kit import Tenant
from tests.app.tools import FOREIGN

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def send(tenant: Tenant, path: str, body: str | bytes, kind: str = "application/json"):
    return await tenant.client.post(path, content=body, headers={"Content-Type": kind})


async def test_foreign_text_comes_back_as_it_was_sent(tenant: Tenant):
    session = await tenant.session()
    lane = f"/v1/sessions/{session}/lanes/main"
    message = {"role": "user", "content": FOREIGN, "timestamp": 1}
    data = {"text": FOREIGN, "big": 2**80, "small": 1e-300, FOREIGN: [None, True]}
    for body in (
        {"type": "message", "message": message},
        {"type": "custom", "customType": "foreign", "data": data},
    ):
        answer = await send(tenant, f"{lane}/entries", json.dumps(body))
        assert answer.status_code == 201, answer.text
    answer = await send(
        tenant, f"{lane}/operations", json.dumps({"kind": "prompt", "prompt": f"echo: {FOREIGN}"})
    )
    receipt = await tenant.done(answer.json()["operationId"])
    assert receipt["outcome"] == "completed"
    answer = await tenant.client.get(f"/v1/sessions/{session}/entries")
    first, second, third, _ = json.loads(answer.content)["data"]
    assert first["message"] == message
    assert second["data"] == data
    assert third["message"]["content"] == f"echo: {FOREIGN}"
    snapshot = json.loads((await tenant.client.get(f"{lane}/snapshot")).content)
    assert snapshot["transcript"][0]["message"] == message


async def test_a_tool_may_return_anything(tenant: Tenant):
    session = await tenant.session()
    receipt = await tenant.run(session, 'tool: {"name": "foreign"}')
    assert receipt["outcome"] == "completed"
    answer = await tenant.client.get(f"/v1/sessions/{session}/entries")
    (result,) = [
        entry["message"]
        for entry in json.loads(answer.content)["data"]
        if entry.get("message", {}).get("role") == "toolResult"
    ]
    assert [part["text"] for part in result["content"]] == [FOREIGN, "x" * 1_000_000]
    assert result["details"] == {
        "nan": "NaN",
        "infinity": "-Infinity",
        "big": 2**80,
        "text": FOREIGN,
    }


async def test_a_megabyte_of_prompt_is_accepted(tenant: Tenant):
    session = await tenant.session()
    text = "é" * 500_000
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/lanes/main/entries",
        json={"type": "custom", "customType": "large", "data": text},
    )
    assert answer.status_code == 201
    entry = (await tenant.entries(session))[0]
    assert entry["data"] == text


async def test_a_body_over_the_limit_is_refused_announced_or_not(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/operations"
    large = json.dumps({"kind": "prompt", "prompt": "x" * MAX_BODY_BYTES}).encode()

    async def unannounced():
        for start in range(0, len(large), 1 << 20):
            yield large[start : start + (1 << 20)]

    for content in (large, unannounced()):
        answer = await tenant.client.post(
            path, content=content, headers={"Content-Type": "application/json"}
        )
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (413, "BodyTooLarge")
        assert problem["limit"] == MAX_BODY_BYTES


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"kind": "prompt", "prompt": NaN}',
        b'{"kind": "prompt", "prompt": Infinity}',
        b"\xff\xfe",
        b'{"kind": "prompt", "prompt": "\xff"}',
        b'{"kind": "prompt", "prompt": "x"} trailing',
        b"{'kind': 'prompt'}",
    ],
)
async def test_a_body_that_is_no_json_is_malformed(tenant: Tenant, body: bytes):
    session = await tenant.session()
    for path in (f"/v1/sessions/{session}/lanes/main/operations", "/v1/sessions"):
        answer = await send(tenant, path, body)
        assert (answer.status_code, answer.json()["code"]) == (400, "MalformedBody"), path


async def test_a_body_of_another_type_is_refused(tenant: Tenant):
    answer = await send(tenant, "/v1/sessions", "name=x", "application/x-www-form-urlencoded")
    assert (answer.status_code, answer.json()["code"]) == (415, "UnsupportedMediaType")
    answer = await send(tenant, "/v1/sessions", "{}", "application/json; charset=utf-8")
    assert answer.status_code == 201


@pytest.mark.parametrize("levels", [101, 5_000, 1_000_000])
async def test_a_body_nested_too_deeply_is_refused(tenant: Tenant, levels: int):
    session = await tenant.session()
    nested = "[" * levels + "]" * levels
    lane = f"/v1/sessions/{session}/lanes/main"
    custom = '{"type": "custom", "customType": "deep", "data": ' + nested + "}"
    for path, body in (
        (f"{lane}/entries", custom),
        (f"{lane}/operations", nested),
        ("/v1/sessions", '{"metadata": {"deep": ' + nested + "}}"),
        ("/v1/sessions", "[" * levels),
    ):
        answer = await send(tenant, path, body)
        assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest"), path


async def test_brackets_inside_text_are_no_levels(tenant: Tenant):
    session = await tenant.session()
    text = "[{" * 500 + '\\"' + "}" * 300
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/lanes/main/entries",
        json={"type": "custom", "customType": "text", "data": [text, text]},
    )
    assert answer.status_code == 201
    assert (await tenant.entries(session))[0]["data"] == [text, text]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": []},
        {
            "role": "assistant",
            "content": [],
            "api": "x",
            "provider": "x",
            "model": "x",
            "usage": {},
            "stopReason": "pending",
            "timestamp": 1,
        },
        {"role": "toolResult", "content": "x", "timestamp": 1},
        {"role": "user", "content": "x", "timestamp": "yesterday"},
        {"role": "user", "content": [{"type": "video"}], "timestamp": 1},
        "text",
        None,
    ],
)
async def test_a_message_that_makes_no_sense_is_refused(tenant: Tenant, message: Any):
    session = await tenant.session()
    lane = f"/v1/sessions/{session}/lanes/main"
    answer = await tenant.client.post(
        f"{lane}/entries", json={"type": "message", "message": message}
    )
    assert answer.status_code == 422, answer.text
    assert await tenant.entries(session) == []


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_an_idempotency_key_that_makes_no_sense_is_refused(tenant: Tenant, key: str):
    answer = await tenant.client.post("/v1/sessions", json={}, headers={"Idempotency-Key": key})
    assert answer.status_code == 422, answer.text


@pytest.mark.parametrize("prefer", ["wait", "wait=x", "wait=-1", "respond-async", "", "wait=1e9"])
async def test_a_preference_that_is_not_understood_is_ignored(tenant: Tenant, prefer: str):
    session = await tenant.session()
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/lanes/main/operations",
        json={"kind": "prompt", "prompt": "echo: x"},
        headers={"Prefer": prefer},
    )
    assert answer.status_code == 202


@pytest.mark.parametrize("wait", ["-1", "x", "61", "nan", "inf"])
async def test_a_wait_that_makes_no_sense_is_refused(tenant: Tenant, wait: str):
    session = await tenant.session()
    receipt = await tenant.run(session, "echo: x")
    answer = await tenant.client.get(f"/v1/operations/{receipt['id']}", params={"wait": wait})
    assert answer.status_code == 422, answer.text
