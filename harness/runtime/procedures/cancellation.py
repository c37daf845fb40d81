"""Cancellation reconciliation: settle what is known, start nothing new, end aborted (§4.6)."""

from __future__ import annotations

from typing import assert_never

from harness.context import AbortSignal, Context
from harness.execution.tools import synthetic_message
from harness.messages import DeferredHandle
from harness.models.protocol import Model, RequestOptions
from harness.operation.events import CompactionEnd
from harness.operation.state import (
    AssistantPhase,
    CallCompleted,
    CallOutcomeReady,
    CallPending,
    CallPlanned,
    CheckpointPhase,
    CompactionPhase,
    CompactionState,
    Deferred,
    DeferredPending,
    DeferredPhase,
    DeferredSuspended,
    FailureDrainPhase,
    GenerationPending,
    GenerationReady,
    GenerationRetryWait,
    NavigationState,
    RunState,
    StartingPhase,
    ToolBatch,
    ToolsPhase,
)
from harness.operation.step import LaneProjection
from harness.operation.transitions import terminal
from harness.runtime.lane import Commit, Decision, Decline
from harness.runtime.procedures import assistant, deferred
from harness.runtime.procedures.base import DrivePass, source_call
from harness.runtime.procedures.provider_span import traced_cancel
from harness.runtime.procedures.run import apply_writes
from harness.runtime.procedures.structural import end_standalone
from harness.runtime.procedures.tools import (
    CANCELLED,
    interrupt,
    place_ready,
    report_batch,
    stage,
)
from harness.runtime.procedures.turns import close_turn, open_turn
from harness.session.session import SessionMutator
from harness.telemetry import TelemetryContext


async def reconcile(p: DrivePass) -> None:
    """Bring a cancelled operation to its terminal transaction."""
    state = p.current().state
    match state:
        case RunState():
            await _reconcile_run(p, state)
        case CompactionState() | NavigationState():
            await end_standalone(p, "aborted", cancelled_ok=True)
        case _:
            assert_never(state)


async def _reconcile_run(p: DrivePass, state: RunState) -> None:
    phase = state.phase
    match phase:
        case AssistantPhase(generation=GenerationPending() as pending):
            await assistant.recover_generation(p, pending)
        case AssistantPhase(generation=GenerationReady() | GenerationRetryWait()):
            await close_turn(p)
        case AssistantPhase():
            pass
        case ToolsPhase(batch=batch):
            await _reconcile_tools(p, batch)
        case DeferredPhase(deferred=current):
            await _reconcile_deferred(p, current)
        case CompactionPhase(reason=reason):
            await p.emit(
                CompactionEnd(
                    lane=p.lane.name, run_id=p.operation_id, reason=reason, outcome="aborted"
                )
            )
            p.lane.open_structural = None
        case StartingPhase() | CheckpointPhase() | FailureDrainPhase():
            pass
        case _:
            assert_never(phase)
    while await apply_writes(p, cancelled_ok=True):
        pass
    await close_turn(p)
    await _abort(p)


async def _abort(p: DrivePass) -> None:
    final = await p.final_assistant()

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[bool]:
        if p.run().inbox.writes:
            return Decline(False)
        owned = await p.owned_addresses(mutator, context)
        return Commit(terminal.abort_run(projection, owned, final), True)

    while not await p.transition(plan, cancelled_ok=True):
        await apply_writes(p, cancelled_ok=True)


async def _reconcile_tools(p: DrivePass, batch: ToolBatch) -> None:
    message = await p.assistant(batch.assistant_entry_id)
    restored = p.lane.open_turn != batch.turn_id
    await open_turn(p, batch.turn_id, recovery=restored)
    for call in batch.calls:
        match call:
            case CallPlanned(source_index=index):
                source = source_call(message, index)
                await stage(
                    p, index, synthetic_message(source, CANCELLED, p.now()), terminate=False
                )
            case CallPending(source_index=index):
                await interrupt(p, call, source_call(message, index))
            case CallOutcomeReady():
                pass
            case CallCompleted():
                continue
            case _:
                assert_never(call)
        # One by one: a sequential batch never has more than its next call begun (§9.1, 28).
        await place_ready(p, None, recovery=restored)
    await report_batch(p, message, batch, recovery=restored)


async def _reconcile_deferred(p: DrivePass, current: Deferred) -> None:
    if isinstance(current, DeferredPending):
        await deferred.settle_lost_poll(p, current)
    source_id = current.source_entry_id
    model = p.core.models.resolve(current.configuration.model)
    if model is None:
        return
    handle = await deferred.source_handle(p, source_id)
    await _cancel_at_provider(p, current, model, handle)


async def _cancel_at_provider(
    p: DrivePass, current: DeferredSuspended | DeferredPending, model: Model, handle: DeferredHandle
) -> None:
    # Best effort: the operation ends whatever the provider answers (§4.6). The operation's own
    # signal is already pulled, so the request gets one of its own.
    async def cancel(telemetry: TelemetryContext) -> None:
        options = RequestOptions(
            stream=current.stream_options,
            thinking_level="off",
            signal=AbortSignal(),
            telemetry=telemetry,
            session_id=p.core.session.id,
        )
        await p.core.models.cancel_deferred(model, handle, options)

    await traced_cancel(p, model, cancel)
