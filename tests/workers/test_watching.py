"""Watchers follow ownership: no gap, no entry twice, whichever process they ask."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest

from harness.context import BACKGROUND
from harness.messages import UserMessage
from tests.workers.kit import Fleet, Screen, eventually, watching
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import AppendMessage, CreateLane, Steer
from workers.watching import EndItem, EventItem, Feed, NoSuchLane, SnapshotItem


async def branch(fleet: Fleet, session: str) -> list[str]:
    """The entries of a session with one branch, in order."""
    rows = await fleet.sql(
        "SELECT id::text FROM laneway.entries WHERE session_id = %s ORDER BY seq", session
    )
    return [row[0] for row in rows]


async def shows_all(fleet: Fleet, session: str, *screens: Screen) -> None:
    """Wait until the screens show the whole conversation, then hold them to it."""
    expected = await branch(fleet, session)
    await eventually(lambda: all(len(screen.entries) >= len(expected) for screen in screens))
    for screen in screens:
        assert screen.entries == expected


async def test_watchers_in_every_process_see_the_same(fleet: Fleet) -> None:
    hosts = [await fleet.worker(), await fleet.worker(), await fleet.api(), await fleet.api()]
    session = await fleet.session()
    async with AsyncExitStack() as stack:
        screens = [
            await stack.enter_async_context(watching(host, fleet.tenant, session)) for host in hosts
        ]
        for text in ("echo: one", 'tool: {"name": "nothing"}', "echo: three"):
            operation = await fleet.prompt(hosts[2], session, text)
            await fleet.settled(operation)
        await shows_all(fleet, session, *screens)


async def test_a_watcher_follows_the_work_to_another_host(fleet: Fleet) -> None:
    first = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    async with watching(api, fleet.tenant, session) as screen:
        operation = await fleet.prompt(api, session, gated("g", "gated_safe"))
        await GATES["g"].entered.wait()
        second = await fleet.worker()
        await fleet.kill(first)
        await eventually(lambda: GATES["g"].starts == 2)
        GATES["g"].release.set()
        await fleet.settled(operation)
        await shows_all(fleet, session, screen)
        # And again, while it moves in order.
        third = await fleet.worker()
        await fleet.stop(second)
        operation = await fleet.prompt(api, session, "echo: more")
        await fleet.settled(operation)
        await shows_all(fleet, session, screen)
        assert third.host_id is not None


async def test_a_watcher_joins_in_the_middle_of_a_stream(fleet: Fleet) -> None:
    script = [{"provider": "scripted", "modelId": "slow", "scripted": {"deltaDelay": 0.01}}]
    await fleet.worker(models=script)
    api = await fleet.api(models=script)
    session = await fleet.session()
    words = " ".join(f"w{number}" for number in range(60))
    operation = await fleet.prompt(api, session, f"echo: {words}")
    texts: list[str] = []

    async def read_once() -> None:
        """The text of the answer as this watcher puts it together from snapshot and deltas."""
        text = ""
        async for item in api.watch(fleet.tenant, session, "main", BACKGROUND):
            if isinstance(item, SnapshotItem):
                snapshot = msgspec.json.decode(item.data)
                streaming = (snapshot["operation"] or {}).get("streamingMessage") or {"content": []}
                text = "".join(part["text"] for part in streaming["content"])
                settled = [entry for entry in snapshot["transcript"] if "w59" in str(entry)]
                if len(settled) == 2:
                    text = settled[1]["message"]["content"][0]["text"]
                    break
            elif isinstance(item, EventItem) and item.type == "message_update":
                found = msgspec.json.decode(item.data)
                assert "message" not in found
                if found["event"]["type"] == "text_delta":
                    text += found["event"]["delta"]
            elif isinstance(item, EventItem) and item.type == "run_end":
                break
        texts.append(text)

    readers = []
    for _ in range(6):
        readers.append(asyncio.ensure_future(read_once()))
        await asyncio.sleep(0.08)
    await asyncio.gather(*readers)
    assert await fleet.settled(operation) == ["completed"]
    assert texts == [words] * 6


async def test_reconnecting_after_every_event_shows_the_same(fleet: Fleet) -> None:
    await fleet.worker()
    apis = [await fleet.api(), await fleet.api()]
    session = await fleet.session()
    operation = await fleet.prompt(apis[0], session, "echo: a b c d e f")
    screen = Screen()
    for number in range(400):
        watched = apis[number % 2].watch(fleet.tenant, session, "main", BACKGROUND)
        screen.take(await anext(watched))
        if await fleet.outcome(operation) is not None:
            await watched.aclose()
            break
        item = asyncio.ensure_future(anext(watched))
        done, _ = await asyncio.wait([item], timeout=0.05)
        if done:
            screen.take(item.result())
        item.cancel()
        await asyncio.gather(item, return_exceptions=True)
        await watched.aclose()
    async with watching(apis[1], fleet.tenant, session) as last:
        await shows_all(fleet, session, last)
    assert screen.ended is None


async def test_changes_of_an_idle_session_are_shown(fleet: Fleet) -> None:
    apis = [await fleet.api(), await fleet.api()]
    session = await fleet.session()
    async with watching(apis[1], fleet.tenant, session) as screen:
        await eventually(lambda: screen.snapshots == 1)
        message = AppendMessage(lane="main", message=UserMessage(content="x", timestamp=1))
        await fleet.ok(apis[0], session, message)
        await shows_all(fleet, session, screen)
        assert not apis[1].registry.busy


async def test_without_any_hint_a_watcher_still_follows(fleet: Fleet) -> None:
    await fleet.worker()
    writer = await fleet.api()
    deaf = await fleet.api(watch_poll_ms=20)
    deaf._tasks[0].cancel()  # the one that listens for hints
    session = await fleet.session()
    async with watching(deaf, fleet.tenant, session) as screen:
        await eventually(lambda: screen.snapshots == 1)
        for text in ("echo: one", "echo: two"):
            await fleet.settled(await fleet.prompt(writer, session, text))
        await shows_all(fleet, session, screen)


async def test_all_lanes_can_be_watched(fleet: Fleet) -> None:
    await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    await fleet.ok(api, session, CreateLane(name="side"))
    lanes: set[str] = set()
    ended = 0

    async def follow() -> None:
        nonlocal ended
        async for item in api.watch(fleet.tenant, session, None, BACKGROUND):
            if isinstance(item, SnapshotItem):
                found = msgspec.json.decode(item.data)
                assert {lane["name"] for lane in found["lanes"]} == {"main", "side"}
            elif isinstance(item, EventItem):
                found = msgspec.json.decode(item.data)
                lanes.add(found.get("lane"))
                ended += item.type == "run_end"

    task = asyncio.ensure_future(follow())
    held = await fleet.prompt(api, session, gated("g"))
    await GATES["g"].entered.wait()
    await eventually(lambda: "main" in lanes or bool(lanes) or ended >= 0)
    other = await fleet.prompt(api, session, "echo: x", lane="side")
    await fleet.settled(other)
    GATES["g"].release.set()
    await fleet.settled(held)
    await eventually(lambda: {"main", "side"} <= lanes)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_unknown_lane_is_refused_before_anything_is_sent(fleet: Fleet) -> None:
    worker = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    with pytest.raises(NoSuchLane):
        await anext(api.watch(fleet.tenant, session, "other", BACKGROUND))
    operation = await fleet.prompt(api, session, gated("g"))
    await GATES["g"].entered.wait()
    for host in (api, worker):
        with pytest.raises(NoSuchLane):
            await anext(host.watch(fleet.tenant, session, "other", BACKGROUND))
    GATES["g"].release.set()
    await fleet.settled(operation)


async def test_a_watcher_who_leaves_leaves_nothing_behind(fleet: Fleet) -> None:
    worker = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, gated("g"))
    await GATES["g"].entered.wait()
    live = worker.get(fleet.tenant, session)
    assert live is not None
    for host in (api, worker):
        watched = host.watch(fleet.tenant, session, "main", BACKGROUND)
        await anext(watched)
        assert len(live._feeds) == 1
        await watched.aclose()
        await eventually(lambda: not live._feeds)
    assert await fleet.outcome(operation) is None
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_one_who_does_not_read_is_dropped_and_told() -> None:
    feed = Feed(max_items=3, max_bytes=1_000)
    feed.push(SnapshotItem(b"x" * 5_000))
    for _ in range(10):
        feed.push(EventItem("usage", b"{}"))
    items = [item async for item in feed]
    assert items == [EndItem("slow_reader")]
    wide = Feed(max_items=100, max_bytes=1_000)
    wide.push(SnapshotItem(b"x" * 5_000))
    wide.push(EventItem("usage", b"x" * 600))
    wide.push(EventItem("usage", b"x" * 600))
    assert [item async for item in wide] == [EndItem("slow_reader")]


async def test_one_who_does_not_read_keeps_nobody_and_nothing(fleet: Fleet) -> None:
    worker = await fleet.worker(watch_items=20)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, gated("g"))
    await GATES["g"].entered.wait()
    idle = worker.watch(fleet.tenant, session, "main", BACKGROUND)
    assert isinstance(await anext(idle), SnapshotItem)
    live = worker.get(fleet.tenant, session)
    assert live is not None
    async with watching(worker, fleet.tenant, session) as reading:
        await eventually(lambda: len(live._feeds) == 2)
        (feed, _) = live._feeds
        for number in range(40):
            await fleet.ok(worker, session, Steer(lane="main", message=f"and {number}"))
        # It is not fed any longer, and what had piled up is gone.
        await eventually(lambda: feed not in live._feeds)
        assert len(feed._items) == 1
        GATES["g"].release.set()
        assert await fleet.settled(operation) == ["completed"]
        await shows_all(fleet, session, reading)
        assert reading.ended is None
    assert [item async for item in idle] == [EndItem("slow_reader")]


async def test_a_feed_gives_what_it_got_in_order() -> None:
    feed = Feed(max_items=10, max_bytes=100)
    sent = [SnapshotItem(b"s"), *(EventItem("e", str(number).encode()) for number in range(50))]
    got = []

    async def read() -> None:
        got.extend([item async for item in feed])

    reading = asyncio.ensure_future(read())
    for item in sent:
        feed.push(item)
        await asyncio.sleep(0)
    feed.end(EndItem("released", 7))
    feed.push(EventItem("e", b"late"))
    await reading
    assert got == [*sent, EndItem("released", 7)]
