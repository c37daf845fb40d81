"""One writer per JSONL file, and what its failures leave behind (design §4)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.errors import SessionInUse
from harness.storage.address import list_of, value
from harness.storage.jsonl import JsonlStorage
from harness.storage.jsonl_file import create_jsonl
from harness.storage.metadata import SessionMetadata
from harness.storage.writes import append_list
from tests.storage.support import hold_elsewhere, kill, run_module

LOG = list_of(Any, "app.log")


async def new_file(path: Path) -> None:
    create_jsonl(path, SessionMetadata(id="s", created_at=1))


async def test_a_second_opener_learns_who_holds_the_session(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    await new_file(path)
    first = await JsonlStorage.open(path, SystemClock())
    for _ in range(2):
        with pytest.raises(SessionInUse, match=f"process {os.getpid()} on "):
            await JsonlStorage.open(path, SystemClock())
    await first.commit([append_list(LOG, 1)], BACKGROUND)
    await first.compact(BACKGROUND)
    with pytest.raises(SessionInUse):
        await JsonlStorage.open(path, SystemClock())
    await first.close(BACKGROUND)
    assert list(tmp_path.iterdir()) == [path]
    second = await JsonlStorage.open(path, SystemClock())
    assert len(await second.read_list(LOG, None, BACKGROUND)) == 1
    await second.close(BACKGROUND)


async def test_another_process_is_refused_and_a_killed_one_is_replaced_at_once(
    tmp_path: Path,
) -> None:
    path = tmp_path / "s.jsonl"
    await new_file(path)
    holder = hold_elsewhere("jsonl", path)
    with pytest.raises(SessionInUse, match=f"process {holder.pid} on "):
        await JsonlStorage.open(path, SystemClock())
    kill(holder)
    storage = await JsonlStorage.open(path, SystemClock())
    found = await storage.get_value(value(Any, "app.note"), BACKGROUND)
    assert found is not None
    assert found.value == "from the holder"
    await storage.close(BACKGROUND)


async def test_an_existing_file_is_never_replaced_by_a_new_session(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    await new_file(path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        create_jsonl(path, SessionMetadata(id="other", created_at=2))
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


async def test_a_full_disk_takes_the_half_written_line_back(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    await new_file(path)
    finished = run_module("tests.storage.fill_jsonl", str(path))
    assert (finished.stdout, finished.stderr) == ("refused, then written\n", "")
    storage = await JsonlStorage.open(path, SystemClock())
    found = await storage.read_list(LOG, None, BACKGROUND)
    assert [element.value for element in found] == ["before", "after"]
    await storage.close(BACKGROUND)
