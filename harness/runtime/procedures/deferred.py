"""Deferred generation: one poll per permit; an unknown poll is replaced, never counted (§3.2, §4.5)."""

from __future__ import annotations

from harness.context import Context
from harness.errors import InvariantDefect, StorageCorrupt
from harness.messages import AssistantMessage, DeferredHandle, empty_assistant
from harness.models.protocol import Model
from harness.operation.classify import Classification, WantsTools, classify_response
from harness.operation.durable import OperationError
from harness.operation.state import CancelRequested, Deferred, DeferredPending
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import deferred as transitions
from harness.operation.transitions.assistant import INTERRUPTED, NEVER_SENT, interrupted_response
from harness.runtime.lane import Commit, Decision
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.requests import (
    RequestPlan,
    model_missing,
    output_limit,
    patched_options,
    request_response,
)
from harness.runtime.procedures.spans import response_ends, response_step
from harness.runtime.procedures.streaming import read_frames, report_synthetic
from harness.runtime.procedures.turns import close_settled, open_turn
from harness.session.session import SessionMutator


async def source_handle(p: DrivePass, source_entry_id: str) -> DeferredHandle:
    """The handle that the newest deferred response carries; its absence is corruption."""
    message = await p.assistant(source_entry_id)
    if message.deferred is None:
        missing = StorageCorrupt(f"deferred source {source_entry_id} has no handle")
        raise p.core.fault(missing, p.context, p.lane.name)
    return message.deferred


async def poll(p: DrivePass) -> None:
    """Spend the pass's permit on one poll, from its intent to its settlement."""
    deferred = transitions.deferred_of(p.run())
    restored = isinstance(deferred, DeferredPending)
    p.drive.deferred_permits -= 1
    model = p.core.models.resolve(deferred.configuration.model)
    if model is None:
        code, text, details = model_missing(deferred.configuration)
        error = OperationError(code=code, message=text, details=details)

        def abandon(projection: LaneProjection) -> Step:
            return transitions.abandon_deferred(projection, error)

        await p.step(abandon)
        return
    number = deferred.poll if restored else deferred.poll + 1
    with response_step(p, "deferred", deferred.step_id, number, recovery=restored) as inner:
        await _poll_once(inner, deferred, model, number)


async def _poll_once(p: DrivePass, deferred: Deferred, model: Model, number: int) -> None:
    restored = isinstance(deferred, DeferredPending)
    handle = await source_handle(p, deferred.source_entry_id)
    stream = await patched_options(p, model, deferred.stream_options, "deferred", number)
    response_id, usage_id = p.new_id(), p.new_id()

    def intend(projection: LaneProjection) -> Step:
        return transitions.intend_poll(projection, response_id, usage_id)

    await p.step(intend)
    await open_turn(p, transitions.poll_turn_id(deferred.step_id, number), recovery=restored)
    plan = RequestPlan(
        model,
        deferred.configuration,
        stream,
        "deferred",
        response_id,
        start=lambda context, options: p.core.models.fetch_deferred(model, handle, options),
    )
    message = await request_response(p, plan)
    await settle(p, message, handle, output_limit(model, stream))


async def settle(
    p: DrivePass, message: AssistantMessage | None, handle: DeferredHandle, limit: int
) -> None:
    """Commit the poll's response. None: nothing was sent (aborted)."""
    pending = transitions.deferred_of(p.run())
    if not isinstance(pending, DeferredPending):
        raise InvariantDefect("only a pending poll settles")
    if message is None:
        message = await _synthesize(p, pending, NEVER_SENT)
        await report_synthetic(p, message, pending.response_entry_id, recovery=False)
    model = p.core.models.resolve(pending.configuration.model)

    def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[Classification]:
        state = p.run()
        if transitions.deferred_of(state) != pending:
            raise InvariantDefect("another poll took this settlement's place")
        outcome = classify_response(
            message,
            state.control,
            intended_output_limit=limit,
            expected_handle=handle,
            model=pending.configuration.model,
            api=None if model is None else model.api,
        )
        step = transitions.settle_poll(projection, pending, outcome, follower=p.follower)
        return Commit(step, outcome)

    outcome = await p.transition(plan, cancelled_ok=True)
    response_ends(p, outcome, retrying=False)
    if not p.ended() and not isinstance(outcome, WantsTools):
        await close_settled(p, outcome)


async def settle_lost_poll(p: DrivePass, pending: DeferredPending) -> None:
    """Under cancellation, settle a poll whose outcome nobody knows, with its saved partial (§4.6)."""
    if not isinstance(p.run().control, CancelRequested):
        raise InvariantDefect("a lost poll settles only under cancellation")
    message = await _synthesize(p, pending, INTERRUPTED)
    await open_turn(p, transitions.poll_turn_id(pending.step_id, pending.poll), recovery=True)
    await report_synthetic(p, message, pending.response_entry_id, recovery=True)
    handle = await source_handle(p, pending.source_entry_id)
    await settle(p, message, handle, 0)


async def _synthesize(p: DrivePass, pending: DeferredPending, reason: str) -> AssistantMessage:
    partial = await read_frames(
        p.core.session.storage, p.operation_id, pending.response_entry_id, p.context
    )
    zero = empty_assistant(
        provider=pending.configuration.model.provider,
        model=pending.configuration.model.model_id,
        api="unknown",
        timestamp=p.now(),
    )
    return interrupted_response(
        partial,
        configuration=pending.configuration,
        timestamp=p.now(),
        aborted=True,
        zero=zero,
        reason=reason,
    )
