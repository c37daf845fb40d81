"""What the database keeps beside a commit's writes, derived from them so that no caller can forget it.

These are the scheduler's row of each open operation, its receipt, and the session's listed name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from harness.codec import encode_str, valid_unicode
from harness.errors import OperationKind
from harness.operation.lane_state import (
    CompactionLastResult,
    LaneLastResult,
    NavigationLastResult,
    RunLastResult,
)
from harness.operation.state import (
    CompactionIntent,
    CompactionState,
    NavigationIntent,
    NavigationState,
    OperationMeta,
    OperationState,
    RunIntent,
    RunState,
)
from harness.storage.writes import DeleteValue, SetValue, Write
from harness.telemetry import TelemetryContext
from storage_pg.due import Due, PollSettings, due_instant, due_of

# 7 is the release before's way to say what 11 says.
_DUE, _FINISHED, _NAMED, _OPENED = 8, 9, 10, 11

LAST_RESULT = "pi.lane.lastResult"
META = "pi.op.meta"
STATE = "pi.op.state"
NAME = "pi.session.name"

# A step's code and columns, as the commit function takes them.
Step: TypeAlias = tuple[int, *tuple[str | None, ...]]


@dataclass(slots=True)
class _Facts:
    """What a commit's writes say about operations and the session."""

    opened: dict[str, OperationMeta] = field(default_factory=dict[str, OperationMeta])
    moved: dict[str, OperationState] = field(default_factory=dict[str, OperationState])
    ended: dict[str, LaneLastResult | None] = field(
        default_factory=dict[str, "LaneLastResult | None"]
    )
    named: list[str | None] = field(default_factory=list["str | None"])

    def note(self, write: SetValue | DeleteValue) -> None:
        """Take in one write."""
        match write:
            case SetValue(namespace="pi.op.meta", value=OperationMeta() as meta):
                self.opened[meta.operation_id] = meta
            case SetValue(
                namespace="pi.op.state",
                key=operation,
                value=(RunState() | CompactionState() | NavigationState()) as state,
            ):
                self.moved[operation] = state
            case SetValue(
                namespace="pi.lane.lastResult",
                value=(RunLastResult() | CompactionLastResult() | NavigationLastResult()) as result,
            ):
                self.ended[result.operation_id] = result
            case DeleteValue(namespace="pi.op.state", key=operation):
                self.ended.setdefault(operation, None)
            case SetValue(namespace="pi.session.name", value=str() as name):
                self.named.append(name)
            case DeleteValue(namespace="pi.session.name"):
                self.named.append(None)
            case _:
                return


def derived_steps(
    writes: Sequence[Write],
    *,
    known_due: Mapping[str, Due],
    due: dict[str, Due | None],
    stamp: int,
    polls: PollSettings,
    telemetry: TelemetryContext,
    traces: dict[str, str],
) -> list[Step]:
    """The steps to add to a commit made at `stamp` on behalf of `telemetry`.

    `known_due` holds the session's open operations; changes to it are put into `due` (None: over),
    and the traces of operations that this commit opens into `traces`, to be taken over when the
    commit is done.
    """
    facts = _Facts()
    for write in writes:
        if isinstance(write, SetValue | DeleteValue):
            facts.note(write)
    steps: list[Step] = [(_NAMED, listed_name(name)) for name in facts.named]
    for operation, meta in facts.opened.items():
        state = facts.moved.get(operation)
        if operation in known_due or state is None:
            continue
        after = due_of(state)
        due[operation] = after
        instant = due_instant(after, stamp, polls)
        traceparent = telemetry.traceparent
        if traceparent is not None:
            traces[operation] = traceparent
        columns = (operation, meta.lane, kind_of(meta), str(instant), str(meta.started_at))
        steps.append((_OPENED, *columns, traceparent))
    for operation, state in facts.moved.items():
        before, after = known_due.get(operation), due_of(state)
        if before is None or before == after or operation in facts.ended:
            continue
        due[operation] = after
        steps.append((_DUE, operation, str(due_instant(after, stamp, polls))))
    for operation, result in facts.ended.items():
        if operation in known_due or operation in facts.opened:
            due[operation] = None
            steps.append(_finished(operation, result))
    return steps


def kind_of(meta: OperationMeta) -> OperationKind:
    """The kind of the operation that this metadata describes."""
    match meta.intent:
        case RunIntent():
            return "run"
        case CompactionIntent():
            return "compaction"
        case NavigationIntent():
            return "navigation"
        case _:
            assert_never(meta.intent)


def listed_name(name: str | None) -> str | None:
    """The name as text can hold it; the session's own value keeps every character."""
    return None if name is None else valid_unicode(name).replace("\x00", "\ufffd")


def _finished(operation: str, result: LaneLastResult | None) -> Step:
    if result is None:
        return (_FINISHED, operation)
    error = None if result.error is None else encode_str(result.error)
    return (_FINISHED, operation, result.outcome, encode_str(result), error)
