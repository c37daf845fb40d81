"""The writer lease: refused openers, dead owners, zombies, renewal (§1.7)."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.errors import LeaseLost, SessionInUse, SessionNotFound, StorageClosed, StorageCorrupt
from harness.storage.address import value
from harness.storage.sqlite import LEASE_TTL_MS, SqliteStorage
from harness.storage.writes import set_value
from tests.storage.support import SteppedClock, hold_elsewhere, kill, new_sqlite

NOTE = value(Any, "app.note")


def lease_rows(path: Path) -> list[tuple[str, int, int]]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT owner_id, fence, expires_at_ms FROM writer_lease").fetchall()
    connection.close()
    return rows


def put_lease(path: Path, owner: str, fence: int, expires_at_ms: int) -> None:
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM writer_lease")
    connection.execute("INSERT INTO writer_lease VALUES (?, ?, ?)", (owner, fence, expires_at_ms))
    connection.commit()
    connection.close()


async def test_a_second_opener_learns_who_holds_the_session(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    first = await new_sqlite(path)
    with pytest.raises(SessionInUse, match=f"process {os.getpid()} on ") as refused:
        await SqliteStorage.open(path, SystemClock())
    assert refused.value.session_id == "s"
    await first.commit([set_value(NOTE, 1)], BACKGROUND)
    await first.close(BACKGROUND)
    assert lease_rows(path) == []
    second = await SqliteStorage.open(path, SystemClock())
    assert (await second.get_value(NOTE, BACKGROUND)) is not None
    await second.close(BACKGROUND)


async def test_another_process_is_refused_and_a_killed_one_is_replaced_at_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.sqlite"
    await (await new_sqlite(path)).close(BACKGROUND)
    holder = hold_elsewhere("sqlite", path)
    with pytest.raises(SessionInUse, match=f"process {holder.pid} on "):
        await SqliteStorage.open(path, SystemClock())
    kill(holder)
    assert len(lease_rows(path)) == 1
    storage = await SqliteStorage.open(path, SystemClock())
    found = await storage.get_value(NOTE, BACKGROUND)
    assert found is not None
    assert found.value == "from the holder"
    await storage.close(BACKGROUND)


async def test_a_lease_from_elsewhere_stands_until_it_expires(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.sqlite", SteppedClock()
    await (await new_sqlite(path, clock)).close(BACKGROUND)
    put_lease(path, "elsewhere/boot/1/77/5/token", 41, clock.now + 1)
    with pytest.raises(SessionInUse, match="process 77 on elsewhere"):
        await SqliteStorage.open(path, clock)
    clock.now += 1
    storage = await SqliteStorage.open(path, clock)
    assert [row[1] for row in lease_rows(path)] == [42]
    await storage.close(BACKGROUND)


async def test_a_zombie_writes_nothing_and_releases_nothing(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.sqlite", SteppedClock()
    zombie = await new_sqlite(path, clock)
    await zombie.commit([set_value(NOTE, "before")], BACKGROUND)
    clock.now += LEASE_TTL_MS
    successor = await SqliteStorage.open(path, clock)
    with pytest.raises(LeaseLost):
        await zombie.commit([set_value(NOTE, "zombie")], BACKGROUND)
    await successor.commit([set_value(NOTE, "successor")], BACKGROUND)
    with pytest.raises(LeaseLost):
        await zombie.commit([set_value(NOTE, "zombie")], BACKGROUND)
    await zombie.close(BACKGROUND)
    assert len(lease_rows(path)) == 1
    await successor.commit([set_value(NOTE, "still here")], BACKGROUND)
    found = await successor.get_value(NOTE, BACKGROUND)
    assert found is not None
    assert found.value == "still here"
    await successor.close(BACKGROUND)
    assert lease_rows(path) == []


async def test_commits_renew_the_lease(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.sqlite", SteppedClock()
    storage = await new_sqlite(path, clock)
    expiry = lease_rows(path)[0][2]
    clock.now += 1_000
    await storage.commit([set_value(NOTE, 1)], BACKGROUND)
    assert lease_rows(path)[0][2] == expiry
    clock.now += LEASE_TTL_MS // 3
    await storage.commit([set_value(NOTE, 2)], BACKGROUND)
    assert lease_rows(path)[0][2] == clock.now + LEASE_TTL_MS
    # Late, but nobody took it: the claim stands.
    clock.now += 10 * LEASE_TTL_MS
    await storage.commit([set_value(NOTE, 3)], BACKGROUND)
    await storage.close(BACKGROUND)


async def test_an_idle_session_renews_its_lease(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    await (await new_sqlite(path)).close(BACKGROUND)
    storage = await SqliteStorage.open(path, SystemClock(), lease_ttl_ms=600)
    expiry = lease_rows(path)[0][2]
    async with asyncio.timeout(30):
        while lease_rows(path)[0][2] == expiry:  # noqa: ASYNC110  # another thread changes a file
            await asyncio.sleep(0.05)
    await storage.commit([set_value(NOTE, 1)], BACKGROUND)
    await storage.close(BACKGROUND)


async def test_a_cancelled_opening_leaves_the_session_free(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    await (await new_sqlite(path)).close(BACKGROUND)
    opening = asyncio.create_task(SqliteStorage.open(path, SystemClock()))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    async with asyncio.timeout(30):
        while True:
            try:
                storage = await SqliteStorage.open(path, SystemClock())
                break
            except SessionInUse:
                await asyncio.sleep(0.01)
    await storage.close(BACKGROUND)


async def test_files_that_are_no_sessions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound):
        await SqliteStorage.open(tmp_path / "absent.sqlite", SystemClock())
    text = tmp_path / "text.sqlite"
    text.write_text("this is no database" * 100)
    with pytest.raises(StorageCorrupt):
        await SqliteStorage.open(text, SystemClock())
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(StorageCorrupt):
        await SqliteStorage.open(empty, SystemClock())


async def test_close_twice_at_once_and_after(tmp_path: Path) -> None:
    storage = await new_sqlite(tmp_path / "s.sqlite")
    await asyncio.gather(storage.close(BACKGROUND), storage.close(BACKGROUND))
    await storage.close(BACKGROUND)
    with pytest.raises(StorageClosed):
        await storage.repair_branch_index(BACKGROUND)
