"""Driving, cancelling and inspecting an operation by its expected id (§4.1, §4.6, §5.1)."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from harness.context import Context
from harness.errors import Closed, HarnessClosed, OperationMismatch
from harness.messages import AgentMessage
from harness.operation.results import (
    AbortRequest,
    DriveOutcome,
    DriveSettled,
    LaneExecution,
)
from harness.operation.state import RunState
from harness.operation.step import LaneProjection
from harness.operation.transitions.queues import drained_ids, request_cancel
from harness.result import Err, Ok, Result
from harness.runtime.accept import CLOSED
from harness.runtime.drive import Drive, DriveOptions
from harness.runtime.drive_loop import start_pass
from harness.runtime.gate import OperationEnded
from harness.runtime.lane import Commit, Decision, Decline, Lane, until_cancelled
from harness.runtime.outcomes import hydrate
from harness.runtime.procedures.base import queue_items
from harness.runtime.snapshots import current_operation
from harness.session.line import observe
from harness.session.session import SessionMutator

DriveResult: TypeAlias = Result[DriveOutcome, OperationMismatch | Closed]
AbortResult: TypeAlias = Result[AbortRequest, OperationMismatch | Closed]


def mismatch(projection: LaneProjection, expected: str) -> OperationMismatch:
    """The rejection of a stale operation id."""
    current = None if projection.operation is None else projection.operation.id
    last = None if projection.last_result is None else projection.last_result.operation_id
    return OperationMismatch(
        message=f"operation {expected} is not current on lane {projection.lane}",
        lane=projection.lane,
        expected_operation_id=expected,
        current_operation_id=current,
        last_operation_id=last,
    )


async def drive(lane: Lane, options: DriveOptions, context: Context) -> DriveResult:
    """Install or join the pass of an operation, or return its outcome when it is over.

    Raises `DriveAbandoned` when the installer of a joined pass went away, `HarnessFault` and
    `HarnessClosed`, and whatever a fail-closed hook raised.
    """

    def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[Drive | OperationMismatch | None]:
        installed = lane.drive
        # A pass keeps the lane until its end was reported; its id may still be joined.
        if installed is not None:
            return Decline(installed)
        operation = projection.operation
        if operation is None or operation.id != options.operation_id:
            last = projection.last_result
            if operation is None and last is not None and last.operation_id == options.operation_id:
                return Decline(None)
            return Decline(mismatch(projection, options.operation_id))
        new = Drive(options, inner)
        lane.drive = new
        # The task takes its first step only after this job has left the line.
        start_pass(lane.core, lane, new)
        return Decline(new)

    if lane.core.closed:
        return Err(CLOSED)
    while True:
        found = await lane.command(plan, context)
        if isinstance(found, OperationMismatch):
            return Err(found)
        if found is None:
            return Ok(await _latest(lane, options.operation_id, context))
        if found.operation_id == options.operation_id:
            return Ok(await until_cancelled(found.completion, context))
        if lane.projection.operation is None or found.operation_id == lane.projection.operation.id:
            return Err(mismatch(lane.projection, options.operation_id))
        # The pass of an ended operation is about to leave the lane to its successor.
        await until_cancelled(found.left, context)


async def _latest(lane: Lane, operation_id: str, context: Context) -> DriveSettled:
    result = lane.projection.last_result
    assert result is not None
    outcome = await hydrate(lane, result, context)
    return DriveSettled(operation_id=operation_id, outcome=outcome)


async def request_abort(lane: Lane, operation_id: str, context: Context) -> AbortResult:
    """Make cancellation durable for the expected operation; starts no pass (§4.6)."""
    loop = asyncio.get_running_loop()
    cancellation: asyncio.Future[None] = loop.create_future()
    live = lane.drive
    if live is not None and live.operation_id == operation_id:
        live.begin_abort(cancellation)

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[AbortRequest | OperationMismatch]:
        operation = projection.operation
        if operation is None or operation.id != operation_id:
            return Decline(mismatch(projection, operation_id))
        if operation.cancelling:
            steer_ids, follow_up_ids = drained_ids(operation)
        elif isinstance(operation.state, RunState):
            steer_ids = operation.state.inbox.steer
            follow_up_ids = operation.state.inbox.follow_up
        else:
            steer_ids, follow_up_ids = (), ()
        steer = await _messages(mutator, steer_ids, inner)
        follow_up = await _messages(mutator, follow_up_ids, inner)
        answer = AbortRequest(
            operation_id=operation_id,
            newly_requested=not operation.cancelling,
            steer=steer,
            follow_up=follow_up,
        )
        if operation.cancelling:
            return Decline(answer)
        next_run = await queue_items(mutator, projection.state.pending_next_run, inner)
        step = request_cancel(
            projection,
            lane.core.environment.clock.now_ms(),
            (steer, follow_up),
            next_run,
        )
        return Commit(step, answer)

    future = lane.submit(plan, context)

    def decided(
        done: asyncio.Future[tuple[AbortRequest | OperationMismatch, asyncio.Future[None] | None]],
    ) -> None:
        _signal(lane, operation_id, live, cancellation, done)

    future.add_done_callback(decided)
    try:
        answer, delivery = await until_cancelled(future, context)
        if delivery is not None:
            await asyncio.shield(delivery)
    except HarnessClosed:
        return Err(CLOSED)
    return Err(answer) if isinstance(answer, OperationMismatch) else Ok(answer)


def _signal(
    lane: Lane,
    operation_id: str,
    live: Drive | None,
    cancellation: asyncio.Future[None],
    done: asyncio.Future[tuple[AbortRequest | OperationMismatch, asyncio.Future[None] | None]],
) -> None:
    if done.cancelled():
        cancellation.cancel()
        return
    error = done.exception()
    if error is not None:
        cancellation.set_exception(error)
        observe(cancellation)
        return
    cancellation.set_result(None)
    answer = done.result()[0]
    # Another pass may have been installed between the call and its turn on the line.
    for owner in {live, lane.drive}:
        if owner is None or owner.operation_id != operation_id:
            continue
        if isinstance(answer, OperationMismatch):
            owner.close_gate(OperationEnded("the operation is over"))
        else:
            owner.begin_abort(cancellation)
            owner.signal_abort()


async def _messages(
    mutator: SessionMutator, ids: tuple[str, ...], context: Context
) -> tuple[AgentMessage, ...]:
    return tuple(item.message for item in await queue_items(mutator, ids, context))


async def inspect_execution(lane: Lane, context: Context) -> LaneExecution:
    """A coherent observation of the lane's small state; reads nothing and resolves nothing."""

    def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[LaneExecution]:
        return Decline(
            LaneExecution(
                lane=projection.lane,
                leaf_id=projection.leaf_id,
                configured_model=projection.config.model,
                current=current_operation(projection.operation, owned=lane.drive is not None),
                last_result=projection.last_result,
            )
        )

    return await lane.command(plan, context)
