"""Event streams over HTTP: no gap, no duplicate, through any process; and goodbyes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from app.client import StreamEvent, read_events
from tests.app import tools
from tests.app.kit import Tenant, collect, until
from tests.app.test_operations import hold, new_id

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Transcript:
    """What a client shows: built from snapshots and events as the API's documentation says."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.added: list[str] = []
        self.text = ""

    def take(self, event: StreamEvent) -> None:
        match event.name:
            case "snapshot":
                self.entries = [entry["id"] for entry in event.data["transcript"]]
                operation: dict[str, Any] = event.data["operation"] or {}
                streaming = operation.get("streamingMessage")
                self.text = "" if streaming is None else _text(streaming)
            case "message_start":
                if event.data["message"]["role"] == "assistant":
                    self.text = _text(event.data["message"])
            case "message_update":
                assert "message" not in event.data
                if event.data["event"]["type"] == "text_delta":
                    self.text += event.data["event"]["delta"]
            case "entry_added":
                entry = event.data["entry"]
                assert entry["id"] not in self.entries
                self.entries.append(entry["id"])
                if entry["message"]["role"] == "assistant":
                    assert self.text == _text(entry["message"])
            case _:
                pass


def _text(message: dict[str, Any]) -> str:
    return "".join(part.get("text", "") for part in message["content"])


def is_end(event: StreamEvent) -> bool:
    return event.name == "run_end"


async def test_a_lane_streams_a_run_from_its_snapshot_to_its_end(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/events"
    watching = asyncio.create_task(collect(tenant.client, path, is_end))
    await asyncio.sleep(0.1)
    await tenant.run(session, "echo: one two three four five")
    events = await watching
    assert events[0].name == "snapshot"
    names = [event.name for event in events]
    assert names[1:3] == ["run_start", "message_start"]
    assert names.count("message_update") >= 5
    assert [n for n in names if n == "entry_added"] == ["entry_added"] * 2
    transcript = Transcript()
    for event in events:
        transcript.take(event)
        if event.name not in ("snapshot", "end"):
            tenant.world.contract.validate(
                event.data, {"$ref": "#/components/schemas/StreamedEvent"}
            )
            assert event.data["type"] == event.name
    kept = [entry["id"] for entry in await tenant.entries(session)]
    assert transcript.entries == kept


async def test_a_client_that_reconnects_after_each_event_misses_nothing(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/events"
    turns = [
        {"text": "a b c d e f g h", "delay": 0.02, "tools": [{"name": "foreign"}]},
        {"text": "i j k l m n o p", "delay": 0.02},
    ]
    stayed, restless = Transcript(), Transcript()

    async def stay() -> None:
        async with tenant.via(0) as client:
            for event in await collect(client, path, is_end):
                stayed.take(event)

    async def leave_and_return(operation: asyncio.Future[str]) -> None:
        api = 0
        while True:
            api = 1 - api
            async with tenant.via(api) as client:
                seen = 0

                def second(_event: StreamEvent) -> bool:
                    nonlocal seen
                    seen += 1
                    return seen == 2 or (operation.done() and seen == 1)

                for event in await collect(client, path, second):
                    restless.take(event)
                if operation.done() and len(restless.entries) >= 4:
                    return

    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    watchers = [asyncio.create_task(stay()), asyncio.create_task(leave_and_return(done))]
    await asyncio.sleep(0.1)
    receipt = await tenant.run(session, "script: " + json.dumps(turns))
    done.set_result(receipt["id"])
    await asyncio.gather(*watchers)
    kept = [entry["id"] for entry in await tenant.entries(session)]
    assert len(kept) == 4
    assert stayed.entries == restless.entries == kept


async def test_leaving_a_stream_cancels_nothing(tenant: Tenant):
    session = await tenant.session()
    gate = new_id()
    operation = await tenant.submit(session, hold(gate))
    await until(lambda: tools.started[gate] == 1)
    for _ in range(3):
        await collect(tenant.client, f"/v1/sessions/{session}/lanes/main/events", lambda _: True)
    tools.open_gate(gate)
    assert (await tenant.done(operation))["outcome"] == "completed"


async def test_a_snapshot_shows_a_running_tool_to_whoever_asks(tenant: Tenant):
    session = await tenant.session()
    gate = new_id()
    operation = await tenant.submit(session, hold(gate))
    await until(lambda: tools.started[gate] == 1)
    async with tenant.via(1) as client:
        snapshot = (await client.get(f"/v1/sessions/{session}/lanes/main/snapshot")).json()
    shown = snapshot["operation"]
    assert shown["id"] == operation
    assert shown["status"] == "running"
    assert [tool["toolName"] for tool in shown["runningTools"]] == ["hold"]
    tools.open_gate(gate)
    await tenant.done(operation)


async def test_a_session_stream_hears_all_lanes(tenant: Tenant):
    session = await tenant.session()
    await tenant.client.post(f"/v1/sessions/{session}/lanes", json={"name": "side", "at": None})
    ended: set[str] = set()

    def both(event: StreamEvent) -> bool:
        if is_end(event):
            ended.add(event.data["lane"])
        return len(ended) == 2

    watching = asyncio.create_task(collect(tenant.client, f"/v1/sessions/{session}/events", both))
    await asyncio.sleep(0.1)
    await asyncio.gather(
        tenant.run(session, "echo: a"), tenant.run(session, "echo: b", lane="side")
    )
    events = await watching
    assert events[0].name == "snapshot"
    assert {lane["name"] for lane in events[0].data["lanes"]} == {"main", "side"}


async def test_an_idle_stream_hears_what_others_do_through_another_process(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/events"

    def named(event: StreamEvent) -> bool:
        return event.name == "entry_added" or bool(event.data.get("transcript"))

    watching = asyncio.create_task(collect(tenant.client, path, named))
    await asyncio.sleep(0.1)
    async with tenant.via(1) as client:
        await client.post(
            f"/v1/sessions/{session}/lanes/main/entries",
            json={"type": "custom", "customType": "note", "data": 1},
        )
    await watching


async def test_a_draining_process_says_goodbye(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/events"
    services = tenant.world.apis[1].services
    async with tenant.via(1) as client:
        events = read_events(client, path)
        async with contextlib.aclosing(events):
            assert (await anext(events)).name == "snapshot"
            services.draining.set()
            try:
                farewell = await anext(events)
                assert (farewell.name, farewell.data["reason"]) == ("end", "draining")
                assert await anext(events, None) is None
                assert (await client.get("/readyz")).status_code == 503
                assert (await client.get("/livez")).status_code == 200
            finally:
                services.draining.clear()


async def test_a_stream_of_nothing_is_not_found(tenant: Tenant):
    session = await tenant.session()
    for path in (f"/v1/sessions/{session}/lanes/nobody/events", f"/v1/sessions/{new_id()}/events"):
        answer = await tenant.client.get(path)
        assert answer.status_code == 404
