"""Entries, branches, labels and the ledger over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.app.kit import Tenant
from tests.app.routes import CALLS
from tests.app.test_operations import new_id

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def pages(tenant: Tenant, path: str, **query: Any) -> list[list[dict[str, Any]]]:
    """Every page of a listing."""
    found: list[list[dict[str, Any]]] = []
    while True:
        answer = await tenant.client.get(path, params=query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found.append(page["data"])
        if "nextCursor" not in page:
            return found
        query["cursor"] = page["nextCursor"]


async def test_entries_are_appended_and_listed_both_ways(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/entries"
    message = {"role": "user", "content": "noted", "timestamp": 5}
    bodies: list[dict[str, Any]] = [
        {"type": "message", "message": message},
        {"type": "custom", "customType": "ticket", "data": {"n": 1}},
        {"type": "custom", "customType": "ticket"},
        {"type": "custom", "customType": "other", "data": [1, None]},
        {"type": "message", "message": message},
    ]
    made: list[str] = []
    for body in bodies:
        answer = await tenant.client.post(path, json=body)
        assert answer.status_code == 201, answer.text
        made.append(answer.json()["entryId"])
    listing = f"/v1/sessions/{session}/entries"
    forward = await pages(tenant, listing, limit=2)
    assert [len(page) for page in forward] == [2, 2, 1]
    assert [entry["id"] for page in forward for entry in page] == made
    backward = await pages(tenant, listing, limit=2, order="desc")
    assert [entry["id"] for page in backward for entry in page] == made[::-1]
    tickets = await pages(tenant, listing, customType="ticket")
    assert [entry["id"] for entry in tickets[0]] == made[1:3]
    assert tickets[0][0]["data"] == {"n": 1}
    assert "data" not in tickets[0][1]
    assert len((await pages(tenant, listing, type="message"))[0]) == 2
    one = (await tenant.client.get(f"{listing}/{made[0]}")).json()
    assert one["message"] == message
    missing = await tenant.client.get(f"{listing}/{new_id()}")
    assert (missing.status_code, missing.json()["code"]) == (404, "EntryNotFound")


async def test_a_branch_is_scanned_from_anywhere(tenant: Tenant):
    session = await tenant.session()
    for number in range(3):
        await tenant.run(session, f"echo: {number}")
    entries = [entry["id"] for entry in await tenant.entries(session)]
    path = f"/v1/sessions/{session}/lanes/main/branch"
    down = await pages(tenant, path, limit=4)
    assert [entry["id"] for page in down for entry in page] == entries[::-1]
    up = await pages(tenant, path, limit=4, order="oldestFirst")
    assert [entry["id"] for page in up for entry in page] == entries
    part = await pages(tenant, path, start=entries[3], stopAtId=entries[2])
    assert [entry["id"] for entry in part[0]] == [entries[3], entries[2]]
    for query, code in (
        ({"start": new_id()}, "UnknownTarget"),
        ({"start": "nonsense"}, "InvalidRequest"),
        ({"stopAtId": "nonsense"}, "InvalidRequest"),
        ({"stopAtType": "nonsense"}, "InvalidRequest"),
        ({"order": "sideways"}, "InvalidRequest"),
        ({"cursor": "nonsense"}, "InvalidCursor"),
        ({"customType": "\0"}, "InvalidRequest"),
    ):
        answer = await tenant.client.get(path, params=query)
        assert (answer.status_code, answer.json()["code"]) == (422, code), query


async def test_an_empty_lane_has_an_empty_branch(tenant: Tenant):
    session = await tenant.session()
    assert await pages(tenant, f"/v1/sessions/{session}/lanes/main/branch") == [[]]


async def test_an_entry_is_labelled_and_the_label_removed(tenant: Tenant):
    session = await tenant.session()
    await tenant.run(session, "echo: x")
    entry = (await tenant.entries(session))[0]["id"]
    path = f"/v1/sessions/{session}/entries/{entry}/label"
    for label in ("one", "two \0 \U0001f30a"):
        answer = await tenant.client.put(path, json={"label": label})
        assert answer.json() == {"entryId": entry, "label": label}
    labels = f"/v1/sessions/{session}/labels"
    shown = (await tenant.client.get(labels)).json()["data"]
    assert shown == [{"entryId": entry, "label": "two \0 \U0001f30a"}]
    for _ in range(2):
        assert (await tenant.client.delete(path)).status_code == 204
    assert (await tenant.client.get(labels)).json() == {"data": []}
    nobody = f"/v1/sessions/{session}/entries/{new_id()}/label"
    for answer in (
        await tenant.client.put(nobody, json={"label": "x"}),
        await tenant.client.delete(nobody),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "EntryNotFound")
    assert (await tenant.client.put(path, json={"label": ""})).status_code == 422


async def test_the_ledger_counts_and_takes_corrections(tenant: Tenant):
    session = await tenant.session()
    await tenant.run(session, "echo: one two three")
    await tenant.run(session, "echo: four")
    path = f"/v1/sessions/{session}/usage"
    rows = [row for page in await pages(tenant, path, limit=1) for row in page]
    assert len(rows) == 2
    stats = (await tenant.client.get(f"/v1/sessions/{session}/stats")).json()
    assert stats["messageCount"] == 4
    assert stats["usage"]["totalTokens"] == sum(row["usage"]["totalTokens"] for row in rows)
    body = dict(CALLS["recordUsage"].body or {})
    entry = (await tenant.entries(session))[1]["id"]
    correction = {**body, "entryId": entry, "details": {"reason": "credit"}}
    headers = {"Idempotency-Key": f"credit {session}"}
    made = await tenant.client.post(path, json=correction, headers=headers)
    again = await tenant.client.post(path, json=correction, headers=headers)
    assert (made.status_code, again.json()) == (201, made.json())
    newest = (await pages(tenant, path, order="desc", limit=1))[0][0]
    assert newest["id"] == made.json()["id"]
    assert (newest["adjustment"], newest["entryId"]) == (True, entry)
    after = (await tenant.client.get(f"/v1/sessions/{session}/stats")).json()
    assert after["usage"]["totalTokens"] == stats["usage"]["totalTokens"] + 1
    for wrong, code in (
        ({**body, "entryId": new_id()}, "UnknownTarget"),
        ({**body, "entryId": "nonsense"}, "InvalidRequest"),
        ({"usage": {"input": "many"}}, "InvalidRequest"),
    ):
        answer = await tenant.client.post(path, json=wrong)
        assert (answer.status_code, answer.json()["code"]) == (422, code)
