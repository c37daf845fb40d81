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
    gate = new_id()
    call = {"name": "hold", "arguments": {"gate": gate}}
    turns = [{"text": "first", "tools": [call]}, {"text": "one two three", "delay": 0.01}]
    operation = await tenant.submit(session, "script: " + json.dumps(turns))
    watching = asyncio.create_task(collect(tenant.client, path, is_end))
    await until(lambda: tools.started[gate] == 1)
    await collect(tenant.client, path, lambda event: bool(event.data["operation"]))
    tools.open_gate(gate)
    events = await watching
    assert (await tenant.done(operation))["outcome"] == "completed"
    assert events[0].name == "snapshot"
    names = [event.name for event in events if event.name != "snapshot"]
    assert names[-1] == "run_end"
    assert names.count("message_update") >= 3
    transcript = Transcript()
    for event in events:
        transcript.take(event)
        if event.name not in ("snapshot", "end"):
            assert event.data["type"] == event.name
            tenant.world.contract.validate(
                event.data, {"$ref": "#/components/schemas/StreamedEvent"}
            )
        if event.name == "snapshot":
            tenant.world.contract.validate(
                event.data, {"$ref": "#/components/schemas/LaneSnapshot"}
            )
    assert transcript.entries == [entry["id"] for entry in await tenant.entries(session)]


async def test_a_client_that_reconnects_after_each_event_misses_nothing(tenant: Tenant):
    session = await tenant.session()
    path = f"/v1/sessions/{session}/lanes/main/events"
    gate = new_id()
    tools.open_gate(gate)
    call = {"name": "hold", "arguments": {"gate": gate}}
    turns = [
        {"text": "a b c d e f g h", "delay": 0.02, "tools": [call]},
        {"text": "i j k l m n o p", "delay": 0.02},
    ]
    stayed, restless = Transcript(), Transcript()

    async def stay() -> None:
        async with tenant.via(0) as client:
            for event in await collect(client, path, is_end):
                stayed.take(event)

    async def connect(api: int, events: int) -> None:
        """Watch through an API server for so many events."""
        seen = 0

        def enough(event: StreamEvent) -> bool:
            nonlocal seen
            seen += 1
            restless.take(event)
            return seen == events

        async with tenant.via(api) as client:
            await collect(client, path, enough)

    async def leave_and_return(over: asyncio.Future[str]) -> None:
        api = 0
        while not over.done():
            api = 1 - api
            connection = asyncio.create_task(connect(api, 2))
            # After the last event there is no second one to leave after.
            await asyncio.wait([connection, over], return_when=asyncio.FIRST_COMPLETED)
            connection.cancel()
            await asyncio.wait([connection])
        await connect(1 - api, 1)

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
