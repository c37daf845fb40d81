"""Every kind of operation over HTTP on Postgres: its route, its receipt, and its events."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest

from app.client import StreamEvent
from tests.app.kit import Tenant, collect

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENT = "phases"
PROFILE = {
    "skills": [
        {"name": "greet", "description": "Greets.", "content": "Say hello to whoever is there."}
    ],
    "promptTemplates": [{"name": "count", "content": "echo: counted $1 and $2"}],
    "compaction": {"enabled": True, "reserveTokens": 200, "keepRecentTokens": 5},
}


def _give_agent(tenant: Tenant) -> None:
    services = tenant.world.apis[0].services
    with psycopg.connect(tenant.world.database.admin_dsn, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO laneway.agents (id, tenant_id, name, version, profile, created_at)"
            " VALUES (%s, %s, %s, 1, %s, 0)",
            (services.environment.ids.next(), tenant.id, AGENT, json.dumps(PROFILE)),
        )


async def _session(tenant: Tenant) -> str:
    await asyncio.to_thread(_give_agent, tenant)
    return await tenant.session(agent=AGENT)


async def _run(
    tenant: Tenant, session: str, request: dict[str, Any], last: str
) -> tuple[dict[str, Any], list[StreamEvent]]:
    """The receipt of an operation and what its watcher saw up to the event named `last`."""
    path = f"/v1/sessions/{session}/lanes/main"
    begun = asyncio.Event()

    def enough(event: StreamEvent) -> bool:
        begun.set()
        return event.name == last

    watching = asyncio.create_task(collect(tenant.client, f"{path}/events", enough))
    await begun.wait()
    answer = await tenant.client.post(f"{path}/operations", json=request)
    assert answer.status_code == 202, answer.text
    receipt = await tenant.done(answer.json()["operationId"])
    return receipt, await watching


def _is_deferred(event: StreamEvent) -> bool:
    operation = event.data.get("operation") if event.name == "snapshot" else None
    return event.name == "run_suspend" or bool(operation and operation.get("deferred"))


async def test_a_skill_and_a_template_run(tenant: Tenant):
    session = await _session(tenant)
    receipt, events = await _run(tenant, session, {"kind": "skill", "name": "greet"}, "run_end")
    assert (receipt["kind"], receipt["outcome"]) == ("run", "completed")
    assert events[-1].data["outcome"] == "completed"
    prompt = (await tenant.entries(session))[0]["message"]["content"]
    assert "Say hello to whoever is there." in prompt
    receipt, _ = await _run(
        tenant,
        session,
        {"kind": "prompt_template", "name": "count", "args": ["one", "two"]},
        "run_end",
    )
    assert receipt["finalMessage"]["content"][0]["text"] == "counted one and two"


async def test_a_lane_is_compacted(tenant: Tenant):
    session = await _session(tenant)
    for number in range(4):
        await tenant.run(session, f"echo: a sentence of some length, number {number}")
    receipt, events = await _run(
        tenant,
        session,
        {"kind": "compaction", "customInstructions": "keep the numbers"},
        "compaction_end",
    )
    assert (receipt["kind"], receipt["outcome"]) == ("compaction", "completed")
    assert events[-1].data["reason"] == "manual"
    assert events[-1].data["entry"]["type"] == "compaction"
    assert [entry["type"] for entry in await tenant.entries(session)][-1] == "compaction"
    assert (await tenant.run(session, "echo: and on"))["outcome"] == "completed"


async def test_a_navigation_with_summary(tenant: Tenant):
    session = await _session(tenant)
    await tenant.run(session, "echo: the road not taken")
    first = (await tenant.entries(session))[0]["id"]
    request = {
        "kind": "navigation",
        "targetId": first,
        "options": {"summarize": True, "label": "fork"},
    }
    receipt, events = await _run(tenant, session, request, "navigation_end")
    assert (receipt["kind"], receipt["outcome"]) == ("navigation", "completed")
    summary = events[-1].data["summaryEntry"]
    assert summary["type"] == "branch_summary"
    assert summary["parentId"] == first
    lane = (await tenant.client.get(f"/v1/sessions/{session}/lanes/main")).json()
    assert lane["leafId"] == summary["id"]
    labels = (await tenant.client.get(f"/v1/sessions/{session}/labels")).json()["data"]
    assert labels == [{"entryId": first, "label": "fork"}]


async def test_a_deferred_run_is_polled_to_its_end(tenant: Tenant):
    session = await _session(tenant)
    turns = [{"text": "finished in the background", "defer": 0.1}]
    receipt, events = await _run(
        tenant, session, {"kind": "prompt", "prompt": f"script: {json.dumps(turns)}"}, "run_end"
    )
    assert receipt["outcome"] == "completed"
    assert receipt["finalMessage"]["content"][0]["text"] == "finished in the background"
    assert "run_end" in [event.name for event in events]
    reasons = [
        entry["message"]["stopReason"]
        for entry in await tenant.entries(session)
        if entry["message"]["role"] == "assistant"
    ]
    assert reasons == ["deferred", "stop"]


async def test_an_abort_while_deferred(tenant: Tenant):
    session = await _session(tenant)
    turns = [{"text": "never", "defer": 600}]
    operation = await tenant.submit(session, f"script: {json.dumps(turns)}")
    path = f"/v1/sessions/{session}/lanes/main"
    await collect(tenant.client, f"{path}/events", _is_deferred)
    snapshot = (await tenant.client.get(f"{path}/snapshot")).json()
    assert snapshot["operation"]["deferred"]["handle"]["id"] == "prompted"
    answer = await tenant.client.post(f"/v1/operations/{operation}/abort")
    assert answer.status_code in (200, 202), answer.text
    assert (await tenant.done(operation))["outcome"] == "aborted"
