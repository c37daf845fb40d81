"""Forks: what of a session goes into a new one, and under which rules (§2.7)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from harness.codec import encode_str
from harness.entries import Entry
from harness.errors import InvalidArgument
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.session import MAIN_LANE
from harness.storage.address import Value
from harness.storage.records import Record, ValueRecord, value_of
from harness.storage.snapshot import Snapshot

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BranchFork:
    """One path becomes the new session's main lane.

    `entry_id` is the fork point, None the leaf of the source's main lane; position "before" leaves
    that entry itself out. `id` is the new session's id.
    """

    entry_id: str | None = None
    position: Literal["before", "at"] = "at"
    id: str | None = None


@dataclass(frozen=True, slots=True)
class TreeFork:
    """The whole tree with every lane. `id` is the new session's id."""

    id: str | None = None


ForkOptions: TypeAlias = BranchFork | TreeFork


def fork_records(snapshot: Snapshot, options: ForkOptions) -> Iterator[Record]:
    """The content of the new session, by sequence.

    Entries keep ids, numbers and times. The session's name, labels of copied entries, and lanes with
    their configuration follow; nothing else does: no operations, no pending content, no application
    values, no ledger. Raises `InvalidArgument` for an unknown entry.
    """
    lanes = _Lanes(snapshot)
    match options:
        case TreeFork():
            entries = snapshot.entries()
            leaves = lanes.leaves or {MAIN_LANE: None}
        case BranchFork():
            tip = _fork_point(snapshot, options, lanes.leaves.get(MAIN_LANE))
            entries = iter(()) if tip is None else snapshot.path(tip)
            leaves = {MAIN_LANE: tip}
    labels = lanes.labels
    copied_labels: list[ValueRecord] = []
    last = 0
    for entry in entries:
        if entry.id in labels:
            copied_labels.append(labels[entry.id])
        last = entry.seq
        yield entry
    kept = [*lanes.name, *copied_labels]
    for lane, leaf in leaves.items():
        kept += lanes.copy(lane, leaf)
    for seq, record in enumerate(kept, start=last + 1):
        yield ValueRecord(seq, record.namespace, record.key, record.json)


class _Lanes:
    """The few session-lived values of the source."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.leaves: dict[str, str | None] = {}
        self.labels: dict[str, ValueRecord] = {}
        self.name: list[ValueRecord] = []
        self._configurations: dict[str, ValueRecord] = {}
        leaf_space = values.lane_leaf_inventory_prefix().namespace
        config_space = values.lane_config(MAIN_LANE).namespace
        label_space = values.entry_label("").namespace
        for record in snapshot.values():
            if record.namespace == leaf_space:
                self.leaves[record.key] = value_of(record, values.lane_leaf(record.key))
            elif record.namespace == config_space:
                self._configurations[record.key] = record
            elif record.namespace == label_space:
                self.labels[record.key] = record
            elif record.namespace == values.SESSION_NAME.namespace:
                self.name = [record]

    def copy(self, lane: str, leaf: str | None) -> list[ValueRecord]:
        """An idle lane at `leaf`, with the source's configuration where it has one."""
        configured = self._configurations.get(lane)
        return [
            *([] if configured is None else [configured]),
            value_record(values.lane_leaf(lane), leaf),
            value_record(values.lane_state(lane), IDLE_LANE),
        ]


def _fork_point(snapshot: Snapshot, options: BranchFork, main: str | None) -> str | None:
    tip = main if options.entry_id is None else options.entry_id
    if tip is None:
        return None
    if not snapshot.has_entry(tip):
        raise InvalidArgument(f"cannot fork at {tip}: the session has no such entry")
    return tip if options.position == "at" else _parent_of(snapshot.path(tip), tip)


def _parent_of(path: Iterator[Entry], tip: str) -> str | None:
    parent: str | None = None
    for entry in path:
        if entry.id == tip:
            return parent
        parent = entry.id
    return parent


def value_record(address: Value[T], stored: T, seq: int = 0) -> ValueRecord:
    """A value ready to be written into a new session."""
    return ValueRecord(seq, address.namespace, address.key, encode_str(stored))


def initial_records() -> list[ValueRecord]:
    """What every new session holds: a main lane at the root, idle and not configured (§2.8)."""
    return [
        value_record(values.lane_leaf(MAIN_LANE), None, 1),
        value_record(values.lane_state(MAIN_LANE), IDLE_LANE, 2),
    ]
