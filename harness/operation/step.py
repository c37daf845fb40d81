"""One durable transition as a value: the writes, the projection they make true, the events they allow (§3.4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

import msgspec

from harness.entries import EntryPayload, MessagePayload, NewEntry, place
from harness.errors import InvariantDefect
from harness.messages import AgentMessage
from harness.operation import values
from harness.operation.events import EntryAdded, HarnessEvent, MessageEnd, MessageStart, UsageEvent
from harness.operation.lane_state import LaneLastResult, LaneState
from harness.operation.state import Operation, OperationState, RunState
from harness.settings import LaneConfiguration
from harness.storage.address import AnyValue, Value
from harness.storage.protocol import CommitResult
from harness.storage.writes import (
    InsertEntry,
    InsertUsage,
    Write,
    delete_list,
    delete_value,
    insert_entry,
    insert_usage,
    set_value,
)
from harness.usage import NewUsageRow, Usage, add_usage, stamp_usage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LaneProjection:
    """The small durable state of a lane that its owner keeps in memory (§3.3)."""

    lane: str
    leaf_id: str | None
    config: LaneConfiguration
    state: LaneState
    last_result: LaneLastResult | None
    operation: Operation | None


@dataclass(frozen=True, slots=True)
class EntryPlaced:
    """Becomes `entry_added` for the entry that the write at `index` inserts.

    With `lifecycle`, a message entry is preceded by its message_start and message_end.
    """

    index: int
    lifecycle: bool
    run_id: str | None
    recovery: bool = False


@dataclass(frozen=True, slots=True)
class UsageWritten:
    """Becomes `usage` for the ledger row that the write at `index` appends."""

    index: int


PlannedEvent: TypeAlias = HarnessEvent | EntryPlaced | UsageWritten


@dataclass(frozen=True, slots=True)
class Step:
    """A transition that is ready to commit."""

    writes: tuple[Write, ...]
    projection: LaneProjection
    events: tuple[PlannedEvent, ...]


class Draft:
    """Collects the writes of one transition in their normative order."""

    __slots__ = ("_events", "_projection", "_writes")

    def __init__(self, projection: LaneProjection) -> None:
        self._projection = projection
        self._writes: list[Write] = []
        self._events: list[PlannedEvent] = []

    @property
    def leaf(self) -> str | None:
        """The lane's leaf as of the writes so far."""
        return self._projection.leaf_id

    def entry(
        self,
        entry_id: str,
        payload: EntryPayload,
        *,
        lifecycle: bool = False,
        run_id: str | None = None,
        recovery: bool = False,
    ) -> None:
        """Insert an entry below the leaf, which becomes the leaf; `leaf_write` makes that durable."""
        self._events.append(EntryPlaced(len(self._writes), lifecycle, run_id, recovery))
        self._writes.append(insert_entry(NewEntry(entry_id, self._projection.leaf_id, payload)))
        self._projection = replace(self._projection, leaf_id=entry_id)

    def usage(self, row: NewUsageRow) -> None:
        """Append a ledger row."""
        self._events.append(UsageWritten(len(self._writes)))
        self._writes.append(insert_usage(row))

    def move_leaf(self, leaf_id: str | None) -> None:
        """Move the leaf by navigation."""
        self._projection = replace(self._projection, leaf_id=leaf_id)
        self.leaf_write()

    def leaf_write(self) -> None:
        """Store the current leaf."""
        self._writes.append(
            set_value(values.lane_leaf(self._projection.lane), self._projection.leaf_id)
        )

    def set(self, address: Value[T], stored: T) -> None:
        """Set any other value."""
        self._writes.append(set_value(address, stored))

    def delete(self, address: Value[T]) -> None:
        """Delete any other value."""
        self._writes.append(delete_value(address))

    def delete_all(self, addresses: Iterable[AnyValue]) -> None:
        """Delete several values."""
        self._writes.extend(delete_value(address) for address in addresses)

    def delete_frames(self, operation_id: str, response_entry_id: str) -> None:
        """Delete the stream frames of a response."""
        self._writes.append(
            delete_list(values.pending_assistant_frames(operation_id, response_entry_id))
        )

    def state(self, next_state: OperationState) -> None:
        """Replace the operation's total state."""
        operation = self.operation
        self._writes.append(set_value(values.operation_state(operation.id), next_state))
        self._projection = replace(
            self._projection, operation=Operation(operation.meta, next_state)
        )

    def open(self, operation: Operation, lane_state: LaneState) -> None:
        """Make an accepted operation the lane's current one."""
        self._writes.append(set_value(values.operation_meta(operation.id), operation.meta))
        self._writes.append(set_value(values.operation_state(operation.id), operation.state))
        self._projection = replace(self._projection, operation=operation)
        self.lane_state(lane_state)

    def lane_state(self, lane_state: LaneState) -> None:
        """Replace the lane's state."""
        self._writes.append(set_value(values.lane_state(self._projection.lane), lane_state))
        self._projection = replace(self._projection, state=lane_state)

    def config(self, config: LaneConfiguration) -> None:
        """Replace the lane's configuration."""
        self._writes.append(set_value(values.lane_config(self._projection.lane), config))
        self._projection = replace(self._projection, config=config)

    def finish(self, last_result: LaneLastResult) -> None:
        """Record the terminal outcome and leave the lane idle; the end of a terminal transaction."""
        lane = self._projection.lane
        self._writes.append(set_value(values.lane_last_result(lane), last_result))
        self._projection = replace(self._projection, last_result=last_result, operation=None)
        self.lane_state(
            LaneState(
                current_operation_id=None, pending_next_run=self._projection.state.pending_next_run
            )
        )

    @property
    def operation(self) -> Operation:
        """The open operation; a transition without one is a defect."""
        operation = self._projection.operation
        if operation is None:
            raise InvariantDefect("a transition of an operation needs an open operation")
        return operation

    def event(self, *events: HarnessEvent) -> None:
        """Report something that this transaction makes true."""
        self._events.extend(events)

    def build(self) -> Step:
        """The finished transition."""
        return Step(tuple(self._writes), self._projection, tuple(self._events))


def run_state(projection: LaneProjection) -> tuple[Operation, RunState]:
    """The open run of a lane; anything else is a defect of the caller."""
    operation = projection.operation
    if operation is None or not isinstance(operation.state, RunState):
        raise InvariantDefect("a run transition needs an open run")
    return operation, operation.state


def change_run(state: RunState, **changes: object) -> RunState:
    """The run state with some fields replaced."""
    return msgspec.structs.replace(state, **changes)


def realize(
    step: Step, result: CommitResult, totals: Usage
) -> tuple[tuple[HarnessEvent, ...], Usage]:
    """The events of a committed step, with stamped entries and rows, and the new ledger totals."""
    lane = step.projection.lane
    events: list[HarnessEvent] = []
    for planned in step.events:
        match planned:
            case EntryPlaced(index=index, lifecycle=lifecycle, run_id=run_id, recovery=recovery):
                write = step.writes[index]
                assert isinstance(write, InsertEntry)
                new = write.entry
                if lifecycle and isinstance(new.payload, MessagePayload):
                    message: AgentMessage = new.payload.message
                    events.append(
                        MessageStart(lane=lane, run_id=run_id, message=message, recovery=recovery)
                    )
                    events.append(
                        MessageEnd(
                            lane=lane,
                            run_id=run_id,
                            message=message,
                            entry_id=new.id,
                            recovery=recovery,
                        )
                    )
                entry = place(
                    new.payload,
                    id=new.id,
                    parent_id=new.parent_id,
                    seq=result.seqs[index],
                    timestamp=result.timestamp,
                )
                events.append(EntryAdded(lane=lane, entry=entry, recovery=recovery))
            case UsageWritten(index=index):
                write = step.writes[index]
                assert isinstance(write, InsertUsage)
                totals = add_usage(totals, write.row.usage)
                events.append(
                    UsageEvent(
                        lane=lane, row=stamp_usage(write.row, result.seqs[index]), totals=totals
                    )
                )
            case _:
                events.append(planned)
    return tuple(events), totals
