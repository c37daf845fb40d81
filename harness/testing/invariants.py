"""The invariants of a session at rest that can be seen from outside (§9.1): content in, violations out.

What only one transaction shows is in `audit.py`. Each violation begins with the invariant's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from harness.context import BACKGROUND
from harness.entries import MessageEntry
from harness.errors import InvalidArgument
from harness.ids import parse_uuid7
from harness.messages import AssistantMessage
from harness.operation import values
from harness.operation.results import OpenOperation
from harness.operation.step import LaneProjection
from harness.session.session import MAIN_LANE
from harness.storage.protocol import BranchScan, Storage
from harness.testing.content import LIST_TYPES, VALUE_TYPES, Content
from harness.testing.operations import operation_violations
from harness.usage import ZERO_USAGE, Usage, add_usage

Violations: TypeAlias = Iterator[str]


def violations(content: Content) -> list[str]:
    """Everything that §9.1 forbids in one session, and is so all the same."""
    return [
        *_identity(content),
        *_addresses(content),
        *_tree(content),
        *_ledger(content),
        *_lanes(content),
        *operation_violations(content),
    ]


def changes(before: Content, after: Content) -> list[str]:
    """What of `before` may not have changed and did; not for a rewrite, which may change it."""
    return [*_changes(before, after)]


def projection_violations(content: Content, projections: Iterable[LaneProjection]) -> list[str]:
    """Where the owner's picture of its lanes is not what is durable; nothing may be under way."""
    return [*_projections(content, {projection.lane: projection for projection in projections})]


def inventory_violations(content: Content, found: Sequence[OpenOperation]) -> list[str]:
    """Where an attachment reported other open operations than there are."""
    expected = {(lane, content.current(lane)) for lane in content.lanes()}
    reported = {(item.lane, item.operation_id) for item in found}
    wanted = {(lane, operation) for lane, operation in expected if operation is not None}
    if reported == wanted and len(reported) == len(found):
        return []
    return [f"34: attachment reported {sorted(reported)} where {sorted(wanted)} is open"]


async def branch_violations(storage: Storage, content: Content, tips: Iterable[str]) -> list[str]:
    """Where a branch scan is not the walk over parent ids (10)."""
    problems: list[str] = []
    for tip in tips:
        found = await storage.scan_branch(BranchScan(start=tip, order="oldestFirst"), BACKGROUND)
        if found != content.path(tip):
            wanted = [entry.id for entry in content.path(tip)]
            problems.append(f"10: from {tip}: {[entry.id for entry in found]} and not {wanted}")
    return problems


async def totals_violations(storage: Storage, content: Content) -> list[str]:
    """Where the maintained totals are not the sum of the ledger and the number of messages (§1.6)."""
    stats = await storage.get_stats(BACKGROUND)
    total: Usage = ZERO_USAGE
    for row in content.usage.values():
        total = add_usage(total, row.usage)
    messages = sum(isinstance(entry, MessageEntry) for entry in content.entries.values())
    if stats.usage == total and stats.message_count == messages:
        return []
    return [f"§1.6: totals {stats}, but {messages} messages and {total}"]


def _identity(content: Content) -> Violations:
    for new_id in content.entries.keys() & content.usage.keys():
        yield f"1: {new_id} is an entry and a ledger row"
    for new_id in (*content.entries, *content.usage):
        if not _is_uuid7(new_id):
            yield f"1: {new_id} is no UUIDv7"
    state = content.state
    seqs = [entry.seq for entry in state.order]
    seqs += [row.seq for row in state.usage.values()]
    seqs += [seq for keys in state.values.values() for seq, _ in keys.values()]
    seqs += [element.seq for elements in state.lists.values() for element in elements]
    if len(seqs) != len(set(seqs)):
        yield "2: a sequence number is used twice"
    for (namespace, key), elements in state.lists.items():
        order = [element.seq for element in elements]
        if order != sorted(order):
            yield f"2: list {namespace}/{key} is not in the order of its appends"


def _is_uuid7(text: str) -> bool:
    try:
        return parse_uuid7(text) == text
    except InvalidArgument:
        return False


def _addresses(content: Content) -> Violations:
    kinds: dict[tuple[str, str], str] = {}
    for kind, namespace, key in content.namespaces():
        if kinds.setdefault((namespace, key), kind) != kind:
            yield f"5: {namespace}/{key} is a value and a list"
        known = VALUE_TYPES if kind == "value" else LIST_TYPES
        if (namespace == "pi" or namespace.startswith("pi.")) and namespace not in known:
            yield f"5: nothing defines {kind} {namespace}/{key}"


def _tree(content: Content) -> Violations:
    for entry in content.entries.values():
        parent = None if entry.parent_id is None else content.entries.get(entry.parent_id)
        if entry.parent_id is not None and parent is None:
            yield f"11: entry {entry.id} names missing parent {entry.parent_id}"
        if parent is not None and parent.seq >= entry.seq:
            yield f"6: entry {entry.id} is older than its parent"
        message = entry.message if isinstance(entry, MessageEntry) else None
        if isinstance(message, AssistantMessage) and message.stop_reason == "pending":
            yield f"7: entry {entry.id} is an unsettled response"


def _ledger(content: Content) -> Violations:
    charged: set[str] = set()
    for row in content.usage.values():
        if row.adjustment or not isinstance(row.entry_id, str):
            continue
        entry = content.entries.get(row.entry_id)
        message = entry.message if isinstance(entry, MessageEntry) else None
        if not isinstance(message, AssistantMessage):
            continue
        if row.entry_id in charged:
            yield f"§1.6: response {row.entry_id} has two ledger rows"
        charged.add(row.entry_id)


def _lanes(content: Content) -> Violations:
    names = set(content.lanes())
    if MAIN_LANE not in names:
        yield "§2.3: there is no main lane"
    for address in (values.lane_state(""), values.lane_config(""), values.lane_last_result("")):
        for name in set(content.keys(address.namespace)) - names:
            yield f"§2.3: {address.namespace}/{name} belongs to no lane"
    for name in names:
        leaf = content.leaf(name)
        if leaf is not None and leaf not in content.entries:
            yield f"11: lane {name} stands at missing entry {leaf}"
        if not content.has(values.lane_state(name)):
            yield f"§2.3: lane {name} has no state"
        if name != MAIN_LANE and not content.has(values.lane_config(name)):
            yield f"§2.3: lane {name} has no configuration"
        yield from _last_result(content, name)


def _last_result(content: Content, lane: str) -> Violations:
    result = content.get(values.lane_last_result(lane))
    if result is None:
        return
    if result.operation_id == content.current(lane):
        yield f"16: lane {lane} has a result of its open operation"
    if result.leaf_id is not None and result.leaf_id not in content.entries:
        yield f"16: lane {lane} ended at missing entry {result.leaf_id}"
    failed = result.outcome == "failed"
    if (result.error is not None) != failed:
        yield f"16: lane {lane} ended {result.outcome} with error {result.error}"


def _changes(before: Content, after: Content) -> Violations:
    for what, old, new in (
        ("entry", before.entries, after.entries),
        ("ledger row", before.usage, after.usage),
    ):
        yield from _write_once(what, old, new)
    last = max((seq for seq in _seqs(before)), default=0)
    for entry in after.entries.values():
        if entry.id not in before.entries and entry.seq <= last:
            yield f"2: entry {entry.id} came later than number {last} and has {entry.seq}"
    for lane in set(before.lanes()) - set(after.lanes()):
        yield f"§2.3: lane {lane} is gone"


def _write_once(what: str, old: Mapping[str, object], new: Mapping[str, object]) -> Violations:
    for key, written in old.items():
        if new.get(key) != written:
            yield f"1: {what} {key} was {written} and is {new.get(key)}"


def _seqs(content: Content) -> Iterator[int]:
    for entry in content.entries.values():
        yield entry.seq
    for row in content.usage.values():
        yield row.seq


def _projections(content: Content, projections: Mapping[str, LaneProjection]) -> Violations:
    for lane in projections.keys() ^ set(content.lanes()):
        yield f"12: lane {lane} is owned or durable, not both"
    for lane, owned in projections.items():
        if lane not in content.lanes():
            continue
        durable = (
            content.leaf(lane),
            content.get(values.lane_config(lane)),
            content.lane_state(lane),
            content.get(values.lane_last_result(lane)),
        )
        if durable != (owned.leaf_id, owned.config, owned.state, owned.last_result):
            yield f"20: lane {lane} is owned as {owned}, durable is {durable}"
        operation = owned.operation
        if (None if operation is None else operation.id) != content.current(lane):
            yield f"20: lane {lane} is owned with operation {operation}"
        elif operation is not None and (operation.meta, operation.state) != content.operation(
            operation.id
        ):
            yield f"20: operation {operation.id} is owned as {operation.state}"
