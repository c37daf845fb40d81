"""The durable types by name, and examples of each: every alternative of every union, fields set and unset.

`python -m tests.golden.shapes` prints examples that the golden file does not have yet. A line once
committed is never changed: a session somewhere may hold exactly that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from harness.codec import encode_str
from harness.entries import Entry
from harness.frames import AssistantMessageFrame
from harness.messages import AgentMessage, AgentToolResult
from harness.operation.lane_state import LaneLastResult, LaneState
from harness.operation.payloads import PendingEntry, StructuralPreparation
from harness.operation.state import OperationMeta, OperationState
from harness.settings import LaneConfiguration
from harness.usage import UsageRow

GOLDEN = Path(__file__).parent / "version1.jsonl"

# Any: several of these are unions.
TYPES: dict[str, Any] = {
    "OperationMeta": OperationMeta,
    "OperationState": OperationState,
    "LaneState": LaneState,
    "LaneConfiguration": LaneConfiguration,
    "LaneLastResult": LaneLastResult,
    "PendingEntry": PendingEntry,
    "StructuralPreparation": StructuralPreparation,
    "AgentToolResult": AgentToolResult,
    "AssistantMessageFrame": AssistantMessageFrame,
    "AgentMessage": AgentMessage,
    "Entry": Entry,
    "UsageRow": UsageRow,
}


class GoldenLine(msgspec.Struct, frozen=True):
    """One stored value and the type it is read as."""

    type: str
    value: msgspec.Raw


def examples(type_: Any) -> list[Any]:
    """Instances that together use every alternative below this type."""
    return list(_examples(inspect.type_info(type_)))


def _examples(info: inspect.Type) -> Iterator[Any]:
    match info:
        case inspect.StructType():
            yield from _structs(info)
        case inspect.UnionType():
            for alternative in info.types:
                yield from _examples(alternative)
        case inspect.LiteralType():
            yield from info.values
        case inspect.VarTupleType() | inspect.ListType():
            yield ()
            yield tuple(_examples(info.item_type))
        case inspect.DictType():
            yield {}
            yield {"key": next(iter(_examples(info.value_type)))}
        case inspect.NoneType():
            yield None
        case inspect.BoolType():
            yield from (False, True)
        case inspect.IntType():
            yield 7
        case inspect.FloatType():
            yield 0.25
        case inspect.StrType():
            yield "text"
        case inspect.AnyType():
            yield {"any": [1, None, "x"]}
        case _:
            raise TypeError(f"no example for {info}")


def _structs(info: inspect.StructType) -> Iterator[Any]:
    """As many instances as the field with the most alternatives needs; optional fields are set in
    all but the first."""
    columns = {field.name: list(_examples(field.type)) for field in info.fields}
    rows = max((len(column) for column in columns.values()), default=1)
    for row in range(rows):
        fields = {name: column[row % len(column)] for name, column in columns.items()}
        yield info.cls(**fields)
    required = {field.name: columns[field.name][0] for field in info.fields if field.required}
    if len(required) < len(columns):
        yield info.cls(**required)


def golden_line(name: str, value: Any) -> str:
    """The golden file's line for a value."""
    return encode_str(GoldenLine(type=name, value=msgspec.Raw(encode_str(value).encode())))


def main() -> None:
    """Print the examples that are missing from the golden file."""
    known = set(GOLDEN.read_text().splitlines()) if GOLDEN.exists() else set[str]()
    for name, type_ in TYPES.items():
        for value in examples(type_):
            line = golden_line(name, value)
            if line not in known:
                known.add(line)
                sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
