"""Attachment: restores each lane's small projection and nothing else (§4.4)."""

from __future__ import annotations

from typing import TypeVar

from harness.context import Context
from harness.errors import StorageCorrupt
from harness.operation import values
from harness.operation.results import OpenOperation
from harness.operation.state import (
    CompactionIntent,
    CompactionState,
    NavigationIntent,
    NavigationState,
    Operation,
    OperationMeta,
    OperationState,
    RunIntent,
    RunState,
)
from harness.operation.step import LaneProjection
from harness.session.session import MAIN_LANE, Session
from harness.settings import LaneConfiguration
from harness.storage.address import Value
from harness.storage.writes import set_value

T = TypeVar("T")


async def restore_lanes(
    session: Session, seed: LaneConfiguration, context: Context
) -> list[LaneProjection]:
    """Every lane's projection; an unconfigured main gets the seed. Raises `StorageCorrupt`."""
    names = await session.lane_names(context)
    if MAIN_LANE not in names:
        raise StorageCorrupt("the session has no main lane")
    if await session.storage.get_value(values.lane_config(MAIN_LANE), context) is None:
        await session.commit(
            session.storage, (set_value(values.lane_config(MAIN_LANE), seed),), context
        )
    return [await restore_lane(session, name, context) for name in names]


async def restore_lane(session: Session, lane: str, context: Context) -> LaneProjection:
    """One lane's projection from its point reads (§3.3)."""
    storage = session.storage
    leaf = await _required(session, values.lane_leaf(lane), context)
    config = await _required(session, values.lane_config(lane), context)
    state = await _required(session, values.lane_state(lane), context)
    last = await storage.get_value(values.lane_last_result(lane), context)
    operation: Operation | None = None
    if state.current_operation_id is not None:
        operation_id = state.current_operation_id
        meta = await _required(session, values.operation_meta(operation_id), context)
        current = await _required(session, values.operation_state(operation_id), context)
        _check(lane, operation_id, meta, current)
        operation = Operation(meta, current)
    return LaneProjection(
        lane=lane,
        leaf_id=leaf,
        config=config,
        state=state,
        last_result=None if last is None else last.value,
        operation=operation,
    )


async def _required(session: Session, address: Value[T], context: Context) -> T:
    stored = await session.storage.get_value(address, context)
    if stored is None:
        raise StorageCorrupt(f"{address.namespace}/{address.key} is missing")
    return stored.value


def _check(lane: str, operation_id: str, meta: OperationMeta, state: OperationState) -> None:
    if meta.operation_id != operation_id or meta.lane != lane:
        raise StorageCorrupt(f"operation {operation_id} does not belong to lane {lane}")
    match meta.intent, state:
        case (
            (RunIntent(), RunState())
            | (CompactionIntent(), CompactionState())
            | (NavigationIntent(), NavigationState())
        ):
            return
        case _:
            raise StorageCorrupt(f"operation {operation_id} has a state of another kind")


def open_operation(projection: LaneProjection) -> OpenOperation | None:
    """The inventory item of a lane with an open operation."""
    operation = projection.operation
    if operation is None:
        return None
    return OpenOperation(
        lane=projection.lane,
        operation_id=operation.id,
        kind=operation.kind,
        started_at=operation.meta.started_at,
        aborting=operation.cancelling,
    )
