"""Torn last lines are dropped, damage anywhere else is refused where it stands (§1.7)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.errors import StorageCorrupt
from harness.storage.address import list_of, value
from harness.storage.jsonl import JsonlStorage
from harness.storage.jsonl_file import create_jsonl
from harness.storage.metadata import SessionMetadata
from harness.storage.writes import (
    append_list,
    delete_list,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.testing.conformance.checking import Checked
from harness.testing.conformance.model import Model
from harness.testing.conformance.samples import Samples

LOG = list_of(Any, "app.log")


async def session_of_three_transactions(path: Path) -> list[Model]:
    """Write a file; returns what it holds after the first, second and third transaction."""
    create_jsonl(path, SessionMetadata(id="s", created_at=1))
    samples, models = Samples(), list[Model]()
    storage = await JsonlStorage.open(path, SystemClock())
    first = samples.entry(None, samples.user("é\ud800\x00"))
    writes = [
        [insert_entry(first), append_list(LOG, "one"), set_value(value(Any, "app.v"), 1)],
        [delete_list(LOG), append_list(LOG, {"two": "é"}), insert_usage(samples.row())],
        [insert_entry(samples.entry(first.id)), set_value(value(Any, "app.v"), "ü\n")],
    ]
    results = [await storage.commit(batch, BACKGROUND) for batch in writes]
    for count in range(1, len(writes) + 1):
        model = Model()
        for batch, result in zip(writes[:count], results[:count], strict=True):
            model.apply(batch, result)
        models.append(model)
    await storage.close(BACKGROUND)
    return models


async def test_truncation_at_every_byte_of_the_last_two_lines(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    models = await session_of_three_transactions(source)
    content = source.read_bytes()
    ends = [index + 1 for index, byte in enumerate(content) if byte == ord("\n")]
    second_ends, third_ends = ends[-2], ends[-1]
    assert third_ends == len(content)
    for cut in range(ends[-3], len(content) + 1):
        path = tmp_path / f"cut-{cut}.jsonl"
        path.write_bytes(content[:cut])
        # A line without its line end is whole: only the last byte of its transaction is missing.
        whole = 1 + (cut >= second_ends - 1) + (cut >= third_ends - 1)
        expected = models[whole - 1]
        checked = Checked(await JsonlStorage.open(path, SystemClock()), expected)
        await checked.everything()
        # The torn bytes are gone before anything new is written, and the session goes on.
        samples = Samples(cut)
        grown = Checked(checked.storage, _copy(expected))
        await grown.commit(insert_entry(samples.entry(None)), append_list(LOG, cut))
        await grown.storage.close(BACKGROUND)
        again = Checked(await JsonlStorage.open(path, SystemClock()), grown.model)
        await again.everything()
        await again.storage.close(BACKGROUND)
        path.unlink()


def _copy(model: Model) -> Model:
    copy = Model()
    copy.entries, copy.rows = list(model.entries), list(model.rows)
    copy.values = dict(model.values)
    copy.lists = {place: list(elements) for place, elements in model.lists.items()}
    return copy


@pytest.mark.parametrize(
    "rest", [b"\x00" * 4_096, b"\xff\xfe", b"{}}", b'{"kind":"value"', b'[{"kind":"v"},']
)
async def test_a_last_line_that_is_not_json_is_torn(tmp_path: Path, rest: bytes) -> None:
    for ending in (b"", b"\n"):
        path = tmp_path / f"ending-{len(ending)}.jsonl"
        models = await session_of_three_transactions(path)
        whole = path.read_bytes()
        path.write_bytes(whole + rest + ending)
        checked = Checked(await JsonlStorage.open(path, SystemClock()), models[-1])
        await checked.everything()
        assert path.read_bytes() == whole
        await checked.storage.close(BACKGROUND)


async def test_damage_inside_is_refused_with_its_place(tmp_path: Path) -> None:
    source = tmp_path / "source.jsonl"
    await session_of_three_transactions(source)
    lines = source.read_bytes().splitlines(keepends=True)
    for number in range(2, len(lines)):
        offset = sum(len(line) for line in lines[: number - 1])
        for damaged in (
            b"\n",
            lines[number - 1][:-5] + b"\n",
            b"\x00" * 80 + b"\n",
            b"42\n",
            b"[]\n",
        ):
            path = tmp_path / "damaged.jsonl"
            path.write_bytes(b"".join([*lines[: number - 1], damaged, *lines[number:]]))
            before = path.read_bytes()
            with pytest.raises(StorageCorrupt, match=f"line {number} at byte {offset} "):
                await JsonlStorage.open(path, SystemClock())
            assert path.read_bytes() == before


ENTRY = {
    "kind": "entry", "seq": 90, "timestamp": 1, "id": "n", "parentId": None, "type": "message",
    "message": {"role": "user", "content": "x", "timestamp": 1},
}  # fmt: skip
USAGE = {"kind": "usage", "seq": 90, "id": "n", "adjustment": False, "usage": {}}
VALUE = {"kind": "value", "op": "set", "seq": 90, "namespace": "n", "key": "", "value": 1}


@pytest.mark.parametrize(
    "record",
    [
        {**ENTRY, "parentId": "absent"},
        {**ENTRY, "timestamp": -1},
        {**ENTRY, "timestamp": "now"},
        {**ENTRY, "seq": 1},
        {**ENTRY, "type": "model_change"},
        {**ENTRY, "unknown": 1},
        {**USAGE, "seq": 2},
        {**USAGE, "usage": 3},
        {**VALUE, "op": "append"},
        {**VALUE, "op": "delete"},
        {**VALUE, "kind": "list"},
        {**VALUE, "kind": "fact"},
        {name: field for name, field in VALUE.items() if name != "value"},
        {name: field for name, field in VALUE.items() if name != "kind"},
        {**VALUE, "seq": 0},
        [ENTRY, {**USAGE, "seq": 91}],
        [VALUE, {**VALUE, "seq": 90}],
        [VALUE, 7],
        [],
        7,
        None,
        "text",
    ],
)
async def test_a_last_line_that_is_json_but_cannot_follow_is_refused(
    tmp_path: Path, record: object
) -> None:
    path = tmp_path / "s.jsonl"
    await session_of_three_transactions(path)
    whole = path.read_bytes()
    path.write_bytes(whole + json.dumps(record).encode() + b"\n")
    with pytest.raises(StorageCorrupt, match=f"line 5 at byte {len(whole)} "):
        await JsonlStorage.open(path, SystemClock())
    assert path.read_bytes()[: len(whole)] == whole


async def test_repeated_ids_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    models = await session_of_three_transactions(path)
    whole = path.read_bytes()
    for record in (
        {**ENTRY, "id": models[-1].entries[0].id},
        {**ENTRY, "id": models[-1].rows[0].id},
        {**USAGE, "id": models[-1].entries[0].id},
        {**USAGE, "id": models[-1].rows[0].id},
    ):
        path.write_bytes(whole + json.dumps(record).encode() + b"\n")
        with pytest.raises(StorageCorrupt, match="written twice"):
            await JsonlStorage.open(path, SystemClock())
