"""Metadata filters: what an index keeps of a session's metadata, as plain text that compares exactly.

A label is a JSON pair of a field and its value, in one canonical spelling and in ASCII, so that any
store can keep it whatever the value contains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from harness.codec import JsonValue
from harness.storage.metadata import SessionMetadata

_ABSENT = object()
MAX_LABEL = 1_000


def labels_of(metadata: SessionMetadata, fields: Sequence[str]) -> tuple[str, ...]:
    """The labels of a session.

    A field is `cwd`, `parentSessionId`, or a name in the application's metadata; a dot goes one
    level down. A list gives a label for each of its elements as well as for itself. Values that
    would make a label longer than `MAX_LABEL` cannot be filtered on and are left out. The first
    label names the fields, so that other fields are always other labels.
    """
    found: set[str] = set()
    for field in fields:
        value = _value(metadata, field)
        if value is _ABSENT:
            continue
        found.add(label(field, value))
        if isinstance(value, list):
            found.update(label(field, element) for element in cast("list[Any]", value))
    return (fields_label(fields), *sorted(one for one in found if len(one) <= MAX_LABEL))


def fields_label(fields: Sequence[str]) -> str:
    """The label that every session has in an index with these fields."""
    return label("", list(fields))


def wanted_labels(where: Mapping[str, JsonValue]) -> list[str]:
    """The labels that a session must have."""
    return [label(field, value) for field, value in where.items()]


# Any: JSON of the application.
def label(field: str, value: Any) -> str:
    """One label."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # 1 and 1.0 are one number in JSON
    return json.dumps([field, value], sort_keys=True, separators=(",", ":"))


def _value(metadata: SessionMetadata, field: str) -> Any:
    if field == "cwd":
        return _ABSENT if metadata.cwd is None else metadata.cwd
    if field == "parentSessionId":
        parent = metadata.parent_session_id
        return _ABSENT if parent is None else parent
    value: Any = metadata.metadata
    for name in field.split("."):
        if not isinstance(value, dict) or name not in value:
            return _ABSENT
        value = cast("dict[str, Any]", value)[name]
    return value
