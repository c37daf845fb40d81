"""Everything a version 1 session can hold stays readable, byte for byte (§7.5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from harness.codec import decode, encode
from harness.context import BACKGROUND
from harness.storage.address import list_of, value
from harness.storage.jsonl import JsonlStorage
from harness.storage.jsonl_file import write_file
from harness.storage.metadata import SessionMetadata
from harness.storage.records import ValueRecord
from tests.golden.shapes import GOLDEN, TYPES, GoldenLine
from tests.storage.support import SteppedClock

LINES = [decode(line, GoldenLine) for line in GOLDEN.read_bytes().splitlines()]


def structs_below(info: inspect.Type, seen: set[type]) -> Iterator[type]:
    match info:
        case inspect.StructType(cls=cls) if cls not in seen:
            seen.add(cls)
            yield cls
            for field in info.fields:
                yield from structs_below(field.type, seen)
        case inspect.UnionType(types=types):
            for alternative in types:
                yield from structs_below(alternative, seen)
        case inspect.VarTupleType(item_type=item):
            yield from structs_below(item, seen)
        case _:
            return


def structs_in(found: Any) -> Iterator[type]:
    if isinstance(found, msgspec.Struct):
        yield type(found)
        for name in found.__struct_fields__:
            yield from structs_in(getattr(found, name))
    elif isinstance(found, tuple | list):
        for item in found:
            yield from structs_in(item)


@pytest.mark.parametrize("name", TYPES)
def test_every_stored_shape_is_read_and_written_back_unchanged(name: str) -> None:
    lines = [line for line in LINES if line.type == name]
    used: set[type] = set()
    for line in lines:
        found = decode(bytes(line.value), TYPES[name])
        assert encode(found) == bytes(line.value)
        used.update(structs_in(found))
    # A type that appears here without an example: run `python -m tests.golden.shapes`.
    assert set(structs_below(inspect.type_info(TYPES[name]), set())) <= used


def test_an_unknown_field_is_refused_rather_than_lost() -> None:
    for line in LINES:
        text = bytes(line.value)
        if line.type in ("OperationState", "OperationMeta", "LaneState", "PendingEntry"):
            with pytest.raises(Exception, match="unknown field"):
                decode(text[:-1] + b',"fromTheFuture":1}', TYPES[line.type])


async def test_golden_values_are_served_from_a_file(tmp_path: Any) -> None:
    path = tmp_path / "s.jsonl"
    records = [
        ValueRecord(seq, f"app.{line.type}", str(seq), bytes(line.value).decode())
        for seq, line in enumerate(LINES, start=1)
    ]
    write_file(path, SessionMetadata(id="s", created_at=1), records)
    storage = await JsonlStorage.open(path, SteppedClock())
    for name, type_ in TYPES.items():
        found = await storage.scan_values(value(type_, f"app.{name}"), BACKGROUND)
        expected = {
            record.key: record.json for record in records if record.namespace == f"app.{name}"
        }
        assert {stored.address.key: encode(stored.value).decode() for stored in found} == expected
    assert await storage.read_list(list_of(Any, "app.none"), None, BACKGROUND) == []
    await storage.close(BACKGROUND)
