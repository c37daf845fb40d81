"""External finalization: an administrator ends an operation while its task may still exist (§4.9).

Package-internal. Authorization and the decision to finalize belong to the hosting layer.
"""

from __future__ import annotations

from harness.context import Context
from harness.errors import OperationMismatch
from harness.messages import AssistantMessage
from harness.operation.durable import OperationError
from harness.operation.results import DriveSettled
from harness.operation.state import RunState
from harness.operation.step import LaneProjection
from harness.operation.transitions import terminal
from harness.result import Err, Ok, Result
from harness.runtime.control import mismatch
from harness.runtime.drive import Drive
from harness.runtime.gate import OperationEnded
from harness.runtime.lane import Commit, Decision, Decline, Lane
from harness.runtime.outcomes import hydrate
from harness.runtime.procedures.base import assistant_of, owned_addresses
from harness.session.session import SessionMutator


async def finalize_externally(
    lane: Lane, operation_id: str, error: OperationError, context: Context
) -> Result[DriveSettled, OperationMismatch]:
    """End the expected operation as failed. A live pass is told, and settles with this outcome.

    The pass's own work may go on for a while; it can neither write nor report any more.
    """
    owner: list[Drive] = []

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[OperationMismatch | None]:
        operation = projection.operation
        if operation is None or operation.id != operation_id:
            return Decline(mismatch(projection, operation_id))
        owned = await owned_addresses(operation_id, mutator, inner)
        if isinstance(operation.state, RunState):
            final = await _final(operation.state, mutator, inner)
            step = terminal.fail_run(projection, owned, error, final)
        else:
            step = terminal.end_structural(projection, owned, "failed", error)

        def committed() -> None:
            drive = lane.drive
            if drive is not None and drive.operation_id == operation_id:
                owner.append(drive)
                drive.finalizing = True
                drive.close_gate(OperationEnded("the operation was ended from outside"))

        return Commit(step, None, committed=committed)

    rejected = await lane.command(plan, context)
    if rejected is not None:
        return Err(rejected)
    result = lane.projection.last_result
    assert result is not None
    settled = DriveSettled(operation_id=operation_id, outcome=await hydrate(lane, result, context))
    # Only now, after the end was delivered, may waiters see it; the lane is free once both this
    # and the pass have happened.
    for drive in owner:
        drive.settle(settled)
        if drive.pass_ended:
            lane.remove_drive(drive)
    return Ok(settled)


async def _final(
    state: RunState, mutator: SessionMutator, context: Context
) -> AssistantMessage | None:
    entry_id = state.latest_assistant_entry_id
    if entry_id is None:
        return None
    return assistant_of((await mutator.get_entries([entry_id], context)).get(entry_id), entry_id)
