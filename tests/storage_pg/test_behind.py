"""Frames are answered at once and go along with whatever their session commits next (§3.7)."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.errors import LeaseLost, StorageCorrupt
from harness.storage.address import ValueList, list_of, value
from harness.storage.protocol import ListRead
from harness.storage.writes import (
    FRAME_NAMESPACE,
    append_list,
    delete_list,
    insert_entry,
    set_value,
)
from harness.testing.conformance.samples import Samples
from storage_pg.documents import Document
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit

COUNTER = value(int, "app.counter")
FRAMES: ValueList[Any] = list_of(Any, FRAME_NAMESPACE, "operation:response")


async def frames_of(storage: PostgresStorage) -> list[tuple[int, Any]]:
    page = await storage.read_list(FRAMES, ListRead(), BACKGROUND)
    return [(element.seq, element.value) for element in page]


async def stream(storage: PostgresStorage, *frames: Any) -> list[int]:
    return [
        (await storage.commit([append_list(FRAMES, frame)], BACKGROUND)).first_seq
        for frame in frames
    ]


async def test_many_frames_are_few_commits_with_the_numbers_that_were_promised(kit: Kit) -> None:
    storage = await kit.new_storage()
    before, _ = kit.writer.counts
    promised = await stream(storage, *range(200))
    sent, _ = kit.writer.counts
    assert sent == before, "nobody waited for the database"
    result = await storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    after, _ = kit.writer.counts
    assert after - before <= 2
    assert await frames_of(storage) == [(seq, n) for n, seq in enumerate(promised)]
    assert result.first_seq == promised[-1] + 1
    assert storage.next_seq == result.first_seq + 1


async def test_frames_need_no_other_commit(kit: Kit) -> None:
    owned = await kit.open_new()
    storage = owned.storage
    promised = await stream(storage, "a", "b")
    # A read sees what was written before it.
    assert await frames_of(storage) == [(promised[0], "a"), (promised[1], "b")]
    more = await stream(storage, "c")
    await storage.close(BACKGROUND)
    with psycopg.connect(kit.database.admin_dsn) as admin:
        rows = admin.execute(
            "SELECT max(seq) FROM laneway.list_values WHERE session_id = %s", (owned.claimed.id,)
        ).fetchone()
    assert rows == (more[0],), "closing writes down what waits"


async def test_a_settlement_deletes_the_frames_that_go_with_it(kit: Kit) -> None:
    storage = await kit.new_storage()
    await stream(storage, *range(20))
    await storage.commit([delete_list(FRAMES), set_value(COUNTER, 1)], BACKGROUND)
    assert await frames_of(storage) == []


async def test_a_refused_commit_takes_no_frames_with_it(kit: Kit) -> None:
    storage, samples = await kit.new_storage(), Samples(1)
    entry = samples.entry(None)
    await storage.commit([insert_entry(entry)], BACKGROUND)
    await stream(storage, "before")
    refused = asyncio.ensure_future(storage.commit([insert_entry(entry)], BACKGROUND))
    await asyncio.sleep(0)
    await stream(storage, "meanwhile")
    with pytest.raises(StorageCorrupt):
        await refused
    promised = await stream(storage, "after")
    found = await frames_of(storage)
    assert [frame for _, frame in found] == ["before", "meanwhile", "after"]
    assert found[-1][0] == promised[0] == storage.next_seq - 1


async def test_a_refused_commit_leaves_the_frames_to_themselves(kit: Kit) -> None:
    storage, samples = await kit.new_storage(), Samples(1)
    entry = samples.entry(None)
    await storage.commit([insert_entry(entry)], BACKGROUND)
    await stream(storage, "before")
    # Nothing is committed and nothing streamed after it.
    with pytest.raises(StorageCorrupt):
        await storage.commit([insert_entry(entry)], BACKGROUND)
    assert [frame for _, frame in await frames_of(storage)] == ["before"]


async def test_a_read_sees_what_goes_along_with_a_commit_under_way(kit: Kit) -> None:
    storage = await kit.new_storage()

    async def commit_with_a_frame() -> None:
        await stream(storage, "answered")
        await storage.commit([set_value(COUNTER, 1)], BACKGROUND)

    committing = asyncio.ensure_future(commit_with_a_frame())
    # Enough for the commit to take the frame along, and for the frame's own sender to find nothing.
    for _ in range(3):
        await asyncio.sleep(0)
    assert not committing.done()
    assert [frame for _, frame in await frames_of(storage)] == ["answered"]
    await committing


async def test_a_read_waits_for_no_other_stream(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = await kit.new_storage()
    other: ValueList[Any] = list_of(Any, FRAME_NAMESPACE, "operation:another")
    submit, streamed = kit.writer.submit, 0

    def slowly(document: Document) -> None:
        asyncio.get_running_loop().call_later(0.02, submit, document)

    async def stream_on() -> None:
        nonlocal streamed
        while True:
            await storage.commit([append_list(other, "token")], BACKGROUND)
            streamed += 1
            await asyncio.sleep(0.005)

    await stream(storage, "mine")
    monkeypatch.setattr(kit.writer, "submit", slowly)
    streaming = asyncio.ensure_future(stream_on())
    try:
        await asyncio.sleep(0.05)
        reading = asyncio.ensure_future(frames_of(storage))
        while not reading.done():
            # Two documents of the other stream take it 12 frames or so; for ever, any number.
            assert streamed < 1_000, "the read waits for a stream that does not end"
            await asyncio.sleep(0.005)
        assert [frame for _, frame in reading.result()] == ["mine"]
    finally:
        streaming.cancel()
        await asyncio.wait([streaming])


async def test_a_zombies_frames_go_nowhere_and_it_hears_of_it(kit: Kit) -> None:
    owned = await kit.open_new()
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        owner.execute(
            "UPDATE laneway.sessions SET fence = fence + 1 WHERE id = %s", (owned.claimed.id,)
        )
    await stream(owned.storage, "late")
    assert await frames_of(owned.storage) == []
    with pytest.raises(LeaseLost):
        await stream(owned.storage, "later")
    with pytest.raises(LeaseLost):
        await owned.storage.commit([set_value(COUNTER, 1)], BACKGROUND)


@pytest.mark.parametrize(("size", "count"), [(300_000, 10), (1, 4_000)], ids=["large", "many"])
async def test_what_waits_is_bounded(kit: Kit, size: int, count: int) -> None:
    owned = await kit.open_new()
    storage = owned.storage
    before, _ = kit.writer.counts
    await stream(storage, *["x" * size] * count)
    documents, _ = kit.writer.counts
    assert documents - before >= 2, "a full store made its writer wait"
    await storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    with psycopg.connect(kit.database.admin_dsn) as admin:
        stored = admin.execute(
            "SELECT count(*) FROM laneway.list_values WHERE session_id = %s", (owned.claimed.id,)
        ).fetchone()
    assert stored == (count,)
