"""Format 4, byte for byte: what is written, and what other writers of the format may write (§1.7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.context import BACKGROUND
from harness.entries import (
    BranchSummaryPayload,
    CompactionPayload,
    CustomPayload,
    MessagePayload,
    NewEntry,
)
from harness.errors import NewerVersion, SessionNotFound, StorageCorrupt
from harness.messages import UserMessage
from harness.storage.address import list_of, value
from harness.storage.jsonl import JsonlStorage
from harness.storage.jsonl_file import create_jsonl
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import EntryScan, UsageScan
from harness.storage.writes import (
    Write,
    append_list,
    delete_list,
    delete_value,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.usage import NewUsageRow, Usage
from tests.storage.support import SteppedClock

GOLDEN = Path(__file__).parents[1] / "golden" / "format4.jsonl"
METADATA = SessionMetadata(id="s_1", created_at=1_700_000_000_000, cwd="/work")
FRAMES = list_of(Any, "pi.pending.assistant_frame", "op_9:e_51")
STATE = value(Any, "pi.op.state", "op_9")


def user(text: str) -> MessagePayload:
    return MessagePayload(message=UserMessage(content=text, timestamp=1))


def transactions() -> list[list[Write]]:
    compaction = CompactionPayload(
        summary="s", retained_tail=(), tokens_before=9, from_hook=False, details=None
    )
    summary = BranchSummaryPayload(from_id=None, summary="left", from_hook=True)
    return [
        [
            insert_entry(NewEntry("e_50", None, user("hé\x00\ud800llo"))),
            set_value(STATE, {"kind": "run"}),
            set_value(value(str | None, "pi.lane.leaf", "main"), "e_50"),
        ],
        [set_value(STATE, None)],
        [append_list(FRAMES, {"type": "text_delta", "contentIndex": 0, "delta": "hi"})],
        [
            insert_entry(NewEntry("e_51", "e_50", compaction)),
            insert_usage(NewUsageRow(id="u_7", usage=Usage(input=1), entry_id="e_51")),
            delete_list(FRAMES),
        ],
        [insert_entry(NewEntry("e_52", "e_51", summary))],
        [insert_entry(NewEntry("e_53", "e_52", CustomPayload(custom_type="note")))],
        [
            insert_usage(
                NewUsageRow(id="u_8", usage=Usage(), adjustment=True, details={"source": "x"})
            )
        ],
        [delete_value(STATE)],
    ]


async def test_what_is_written(tmp_path: Path) -> None:
    path, clock = tmp_path / "s.jsonl", SteppedClock(1_700_000_000_000)
    create_jsonl(path, METADATA)
    storage = await JsonlStorage.open(path, clock)
    for writes in transactions():
        await storage.commit(writes, BACKGROUND)
        clock.now += 100
    await storage.commit([], BACKGROUND)
    await storage.close(BACKGROUND)
    assert path.read_bytes() == GOLDEN.read_bytes()


async def test_a_golden_file_stays_readable(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_bytes(GOLDEN.read_bytes())
    storage = await JsonlStorage.open(path, SteppedClock())
    assert storage.metadata == METADATA
    entries = await storage.scan_entries(EntryScan(), BACKGROUND)
    assert [(e.id, e.parent_id, e.seq, e.timestamp) for e in entries] == [
        ("e_50", None, 1, 1_700_000_000_000),
        ("e_51", "e_50", 6, 1_700_000_000_300),
        ("e_52", "e_51", 9, 1_700_000_000_400),
        ("e_53", "e_52", 10, 1_700_000_000_500),
    ]
    assert [row.id for row in await storage.scan_usage(UsageScan(), BACKGROUND)] == ["u_7", "u_8"]
    assert await storage.get_value(STATE, BACKGROUND) is None
    await storage.close(BACKGROUND)


async def test_field_order_and_spacing_are_free(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    lines = (
        '{ "kind": "header", "storageVersion": 1, "id": "s", "v": 4, "createdAt": 5, "unknown": 1 }',
        (
            '{"seq":3,"type":"message","kind":"entry","message":{"content":"hi","role":"user","timestamp":1},'
            '"parentId":null,"id":"e","timestamp":7}'
        ),
        (
            '[ {"value": {"a": 1.0}, "op":"set","kind":"value","namespace":"n","key":"","seq":8} , '
            '{"op":"append","kind":"list","namespace":"l","key":"k","seq":9,"value":null},'
            '{"seq":10,"adjustment":false,"usage":{"input":1,"output":2},"kind":"usage","id":"u"}]'
        ),
        '{"kind":"value","op":"set","seq":12,"namespace":"n\\ud800","key":"","value":"\\udfff"}',
    )
    path.write_text("\r\n".join(lines) + "\n")
    storage = await JsonlStorage.open(path, SteppedClock())
    assert len(await storage.scan_entries(EntryScan(), BACKGROUND)) == 1
    found = await storage.get_value(value(Any, "n"), BACKGROUND)
    assert found is not None
    assert (found.value, found.seq) == ({"a": 1.0}, 8)
    assert [e.value for e in await storage.read_list(list_of(Any, "l", "k"), None, BACKGROUND)] == [
        None
    ]
    assert (await storage.get_stats(BACKGROUND)).usage.output == 2
    result = await storage.commit([set_value(value(Any, "n"), 1)], BACKGROUND)
    assert result.first_seq == 13
    await storage.close(BACKGROUND)


@pytest.mark.parametrize(
    ("header", "error"),
    [
        ('{"v":5,"kind":"header","id":"s","storageVersion":1,"createdAt":1}', NewerVersion),
        ('{"v":4,"kind":"header","id":"s","storageVersion":99,"createdAt":1}', NewerVersion),
        ('{"v":2,"kind":"header","id":"s","storageVersion":1,"createdAt":1}', StorageCorrupt),
        ('{"v":4,"kind":"entry","id":"s","storageVersion":1,"createdAt":1}', StorageCorrupt),
        ('{"v":4,"kind":"header","storageVersion":1,"createdAt":1}', StorageCorrupt),
        ('{"v":4,"kind":"head', StorageCorrupt),
        ("", StorageCorrupt),
        ("not json", StorageCorrupt),
    ],
)
async def test_bad_headers_are_refused_and_left_alone(
    tmp_path: Path, header: str, error: type[Exception]
) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text(header)
    with pytest.raises(error):
        await JsonlStorage.open(path, SteppedClock())
    assert path.read_text() == header
    assert list(tmp_path.iterdir()) == [path]


async def test_a_missing_file_is_no_session(tmp_path: Path) -> None:
    with pytest.raises(SessionNotFound):
        await JsonlStorage.open(tmp_path / "absent.jsonl", SteppedClock())
