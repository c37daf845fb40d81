"""Snapshot compaction: only live content stays, under its own sequence numbers (§1.7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.address import list_of, value
from harness.storage.jsonl import CompactionPolicy, JsonlStorage
from harness.storage.jsonl_file import create_jsonl
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import ListRead
from harness.storage.publish import staging_path
from harness.storage.writes import (
    append_list,
    delete_list,
    delete_value,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.testing.conformance.checking import Checked
from harness.testing.conformance.samples import Samples

NEVER = CompactionPolicy(min_dead_bytes=1 << 40)


async def new_session(path: Path, policy: CompactionPolicy = NEVER) -> Checked:
    create_jsonl(path, SessionMetadata(id="s", created_at=1, cwd="/w"))
    return Checked(await JsonlStorage.open(path, SystemClock(), policy=policy))


async def reopened(path: Path, checked: Checked) -> Checked:
    await checked.storage.close(BACKGROUND)
    return Checked(await JsonlStorage.open(path, SystemClock(), policy=NEVER), checked.model)


async def run(checked: Checked, samples: Samples, parent: str | None, operation: str) -> str:
    """What a text run with one tool turn writes, in shape and number of commits."""
    state = value(Any, "pi.op.state", operation)
    frames = list_of(Any, "pi.pending.assistant_frame", operation)
    output = value(Any, "pi.pending.tool_output", operation)
    prompt, answer = samples.entry(parent), None
    await checked.commit(
        insert_entry(prompt), set_value(state, {"phase": "starting", "pad": "x" * 600})
    )
    for turn in range(2):
        for number in range(20):
            await checked.commit(append_list(frames, {"delta": f"word {number}"}))
        answer = samples.entry(prompt.id if answer is None else answer.id, samples.assistant())
        await checked.commit(
            insert_entry(answer),
            insert_usage(samples.row(entry_id=answer.id)),
            delete_list(frames),
            set_value(state, {"phase": "tools", "turn": turn, "pad": "y" * 600}),
            set_value(value(Any, "pi.lane.leaf", "main"), answer.id),
        )
        await checked.commit(set_value(output, "progress " * 100))
        await checked.commit(delete_value(output))
    await checked.commit(
        delete_value(state), set_value(value(Any, "pi.lane.lastResult", "main"), operation)
    )
    assert answer is not None
    return answer.id


def kinds(path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        assert isinstance(record, dict), "a snapshot holds one record per line"
        name = record["kind"] + ("." + record["op"] if "op" in record else "")
        found[name] = found.get(name, 0) + 1
    return found


async def test_a_hundred_runs_leave_conversation_ledger_and_live_values(tmp_path: Path) -> None:
    path, samples = tmp_path / "s.jsonl", Samples()
    checked = await new_session(path)
    log = list_of(Any, "app.log", "kept")
    leaf: str | None = None
    for number in range(100):
        leaf = await run(checked, samples, leaf, f"op{number}")
        await checked.commit(append_list(log, number))
    storage = checked.storage
    assert isinstance(storage, JsonlStorage)
    before = path.stat().st_size
    assert storage.file_bytes == before
    cursor = checked.model.lists["app.log", "kept"][49][0]
    await storage.compact(BACKGROUND)
    assert kinds(path) == {
        "header": 1,
        "entry": 300,
        "usage": 200,
        "value.set": 2,
        "list.append": 100,
    }
    assert storage.file_bytes == path.stat().st_size
    assert storage.dead_bytes == 0
    assert path.stat().st_size * 3 < before
    for _ in range(2):
        await checked.everything()
        await checked.read("app.log", "kept", ListRead(cursor=cursor))
        await checked.read("app.log", "kept", ListRead(cursor=cursor, order="desc"))
        checked = await reopened(path, checked)
    await run(checked, samples, leaf, "after")
    await checked.everything()
    await checked.storage.close(BACKGROUND)


async def test_the_file_compacts_itself_while_it_is_used(tmp_path: Path) -> None:
    path, samples = tmp_path / "s.jsonl", Samples()
    checked = await new_session(path, CompactionPolicy(min_dead_bytes=20_000, dead_share=0.5))
    leaf: str | None = None
    largest = 0
    for number in range(60):
        leaf = await run(checked, samples, leaf, f"op{number}")
        storage = checked.storage
        assert isinstance(storage, JsonlStorage)
        largest = max(largest, storage.dead_bytes)
    # Dead bytes go on growing while a compaction runs, by a few commits of one run.
    assert largest < 20_000 + path.stat().st_size + 20_000
    await checked.everything()
    checked = await reopened(path, checked)
    await checked.everything()
    await checked.storage.close(BACKGROUND)
    live = sum(len(line) + 1 for line in path.read_text().splitlines())
    assert live < 60 * 4_000 + 40_000


async def test_opening_compacts_a_file_that_is_mostly_dead(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    checked = await new_session(path)
    address = value(Any, "app.v")
    for number in range(300):
        await checked.commit(set_value(address, "x" * 500 + str(number)))
    await checked.storage.close(BACKGROUND)
    before = path.stat().st_size
    policy = CompactionPolicy(min_dead_bytes=10_000, dead_share=0.5)
    storage = await JsonlStorage.open(path, SystemClock(), policy=policy)
    await Checked(storage, checked.model).everything()
    await storage.close(BACKGROUND)
    assert path.stat().st_size * 100 < before
    checked = Checked(await JsonlStorage.open(path, SystemClock(), policy=policy), checked.model)
    await checked.everything()
    await checked.storage.close(BACKGROUND)


async def test_the_sequence_goes_on_after_a_dropped_last_record(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    checked = await new_session(path)
    log = list_of(Any, "app.log")
    await checked.commit(append_list(log, 1))
    last = (await checked.commit(delete_list(log))).seqs[-1]
    storage = checked.storage
    assert isinstance(storage, JsonlStorage)
    await storage.compact(BACKGROUND)
    assert kinds(path) == {"header": 1}
    for _ in range(2):
        checked = await reopened(path, checked)
    result = await checked.commit(append_list(log, 2))
    assert result.first_seq == last + 1
    await checked.storage.close(BACKGROUND)


async def test_a_failed_compaction_leaves_the_old_file_and_the_session_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, samples = tmp_path / "s.jsonl", Samples()
    checked = await new_session(path, CompactionPolicy(min_dead_bytes=0, dead_share=0.0))
    staging_path(path).mkdir()
    leaf = await run(checked, samples, None, "op")
    await checked.everything()
    assert "was not compacted" in caplog.text
    storage = checked.storage
    assert isinstance(storage, JsonlStorage)
    with pytest.raises(IsADirectoryError):
        await storage.compact(BACKGROUND)
    staging_path(path).rmdir()
    await run(checked, samples, leaf, "op2")
    await checked.everything()
    checked = await reopened(path, checked)
    await checked.everything()
    await checked.storage.close(BACKGROUND)


async def test_what_a_crash_in_a_compaction_leaves_is_ignored(tmp_path: Path) -> None:
    path, samples = tmp_path / "s.jsonl", Samples()
    checked = await new_session(path)
    await run(checked, samples, None, "op")
    staging_path(path).write_bytes(path.read_bytes()[:100])
    checked = await reopened(path, checked)
    await checked.everything()
    storage = checked.storage
    assert isinstance(storage, JsonlStorage)
    await storage.compact(BACKGROUND)
    assert not staging_path(path).exists()
    await checked.everything()
    await storage.close(BACKGROUND)
    assert list(tmp_path.iterdir()) == [path]


async def test_foreign_text_survives_compaction(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    checked = await new_session(path)
    for number, text in enumerate(("\ud800", "\x00", "é\U0001f600", '"\\')):
        await checked.commit(
            set_value(value(Any, "app.v", f"é{number}"), {text: text}),
            append_list(list_of(Any, "app.l"), [text, number]),
        )
    checked = await reopened(path, checked)
    storage = checked.storage
    assert isinstance(storage, JsonlStorage)
    await storage.compact(BACKGROUND)
    await checked.everything()
    checked = await reopened(path, checked)
    await checked.everything()
    await checked.storage.close(BACKGROUND)
