"""Stored content in transit: what a copy, a snapshot file or an export consists of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from harness.entries import Entry
from harness.usage import UsageRow


@dataclass(frozen=True, slots=True)
class ValueRecord:
    """A current value with the sequence number of the write that set it; `json` is its text."""

    seq: int
    namespace: str
    key: str
    json: str


@dataclass(frozen=True, slots=True)
class ElementRecord:
    """A list element with its own sequence number, which is its cursor; `json` is its text."""

    seq: int
    namespace: str
    key: str
    json: str


Record: TypeAlias = Entry | UsageRow | ValueRecord | ElementRecord
