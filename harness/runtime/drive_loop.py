"""The drive pass: which procedure comes next, and how the pass ends (§4.1, §4.5)."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import assert_never

from harness.errors import (
    HarnessClosed,
    HarnessFault,
    InvariantDefect,
    StorageError,
)
from harness.operation.results import (
    DriveOutcome,
    DriveSettled,
    DriveWaitingDeferred,
    DriveWaitingRetry,
)
from harness.operation.state import (
    AssistantPhase,
    CheckpointPhase,
    CompactionPhase,
    CompactionState,
    DeferredPending,
    DeferredPhase,
    FailureDrainPhase,
    Generating,
    GenerationPending,
    GenerationReady,
    GenerationRetryWait,
    NavigationState,
    Operation,
    ReadyToCommit,
    RunState,
    StartingPhase,
    SummaryPending,
    SummaryPhase,
    SummaryRetryWait,
    ToolsPhase,
)
from harness.operation.transitions.deferred import poll_turn_id
from harness.operation.transitions.structural import structural_of
from harness.operation.transitions.tools import batch_of
from harness.runtime.core import Core
from harness.runtime.drive import Drive
from harness.runtime.gate import AbortRequested, OperationEnded
from harness.runtime.hooks import BeforeDrive
from harness.runtime.lane import Lane
from harness.runtime.outcomes import settled_outcome
from harness.runtime.procedures import assistant, deferred, run, structural, tools
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.cancellation import reconcile
from harness.runtime.procedures.navigation import publish_navigation
from harness.runtime.procedures.operation_span import operation_span, pass_ends
from harness.runtime.procedures.spans import checkpoint_span
from harness.runtime.procedures.turns import turn_span


def start_pass(core: Core, lane: Lane, drive: Drive) -> None:
    """Run the pass of an installed drive in a task of its own."""
    operation = lane.projection.operation
    assert operation is not None
    drive.task = asyncio.get_running_loop().create_task(_run_pass(core, lane, drive, operation))
    core.detach(drive.task)
    drive.watch_installer(lambda error: lane.abandon(drive, error))


async def _run_pass(core: Core, lane: Lane, drive: Drive, operation: Operation) -> None:
    p = DrivePass(core, lane, drive)
    try:
        with operation_span(p, operation) as inner:
            outcome = await _execute(inner)
            pass_ends(inner, outcome)
        if not drive.finalizing:
            lane.remove_drive(drive)
            drive.settle(outcome)
    except asyncio.CancelledError:
        # Whoever cancelled the task has failed the drive already; a bare loop shutdown has not.
        _fail(drive, HarnessClosed("the pass was cancelled"))
        raise
    except (HarnessFault, HarnessClosed) as error:
        _fail(drive, error)
    except (InvariantDefect, StorageError) as error:
        _fail(drive, core.fault(error, p.context, lane.name))
    except Exception as error:  # noqa: BLE001 -- a pass that fails (a hook, for one) rejects without a fault
        _fail(drive, error)
    finally:
        drive.pass_ended = True
        # An external finalizer settles the drive itself, after its end event was delivered (§4.9).
        if not drive.finalizing or drive.completion.done():
            lane.remove_drive(drive)


def _fail(drive: Drive, error: BaseException) -> None:
    if not drive.finalizing:
        drive.fail(error)


async def _execute(p: DrivePass) -> DriveOutcome:
    try:
        return await _advance(p)
    except AbortRequested as abort:
        await abort.cancellation
    except OperationEnded:
        return await _settled(p)
    with suppress(OperationEnded):
        await reconcile_to_end(p)
    return await _settled(p)


async def reconcile_to_end(p: DrivePass) -> None:
    """Reconcile until the operation is over; each step is durable on its own."""
    while not p.ended():
        if isinstance(p.current().state, RunState):
            with checkpoint_span(p, "abort_reconcile") as inner:
                await reconcile(inner)
        else:
            await reconcile(p)


async def _settled(p: DrivePass) -> DriveSettled:
    outcome = await settled_outcome(p.lane, p.operation_id, p.context)
    if outcome is None:
        if p.lane.drive is not p.drive or not p.ended():
            raise OperationEnded("this pass lost its lane")
        raise InvariantDefect(f"operation {p.operation_id} ended without a result")
    return DriveSettled(operation_id=p.operation_id, outcome=outcome)


async def _advance(p: DrivePass) -> DriveOutcome:
    if p.ended():
        return await _settled(p)
    if p.current().cancelling:
        await reconcile_to_end(p)
        return await _settled(p)
    if p.core.hooks.has("before_drive"):
        event = BeforeDrive(lane=p.lane.name, run_id=p.operation_id, operation=p.current().kind)
        await p.hook(lambda context: p.core.hooks.before_drive(event, context))
    first = True
    while True:
        if p.ended():
            return await _settled(p)
        if p.current().cancelling:
            await reconcile_to_end(p)
            return await _settled(p)
        waiting = await _wait(p)
        if waiting is not None:
            return waiting
        # Effects that are pending when a pass begins were never owned by it (§4.5).
        await _dispatch(p, orphaned=first)
        first = False


async def _wait(p: DrivePass) -> DriveOutcome | None:
    """The durable wait that ends this pass; or wait here, when the caller asked for that."""
    not_before = retry_time(p)
    if not_before is not None:
        if p.now() < not_before:
            if not p.drive.wait_for_retry:
                return DriveWaitingRetry(operation_id=p.operation_id, not_before=not_before)
            await assistant.wait_for_retry(_retrying(p), not_before)
        return None
    state = p.current().state
    if isinstance(state, RunState) and isinstance(state.phase, DeferredPhase):
        current = state.phase.deferred
        if p.drive.deferred_permits < 1:
            handle = await deferred.source_handle(p, current.source_entry_id)
            return DriveWaitingDeferred(
                operation_id=p.operation_id,
                leaf_id=p.lane.projection.leaf_id or current.source_entry_id,
                source_entry_id=current.source_entry_id,
                deferred=handle,
                poll=current.poll,
            )
    return None


def retry_time(p: DrivePass) -> int | None:
    """When the current retry wait ends, if the operation stands in one."""
    state = p.current().state
    if isinstance(state, RunState) and isinstance(state.phase, AssistantPhase):
        generation = state.phase.generation
        if isinstance(generation, GenerationRetryWait):
            return generation.not_before
    structural_state = structural_of(state)
    if isinstance(structural_state, Generating) and isinstance(
        structural_state.generation, SummaryRetryWait
    ):
        return structural_state.generation.not_before
    return None


def _retrying(p: DrivePass) -> DrivePass:
    """Where the wait belongs: inside the turn whose response is tried again."""
    state = p.current().state
    if isinstance(state, RunState) and isinstance(state.phase, AssistantPhase):
        return turn_span(p, state.phase.generation.context.step_id)
    return p


async def _dispatch(p: DrivePass, *, orphaned: bool) -> None:
    state = p.current().state
    match state:
        case RunState():
            await _dispatch_run(p, state, orphaned=orphaned)
        case CompactionState():
            await _dispatch_structural(p, orphaned=orphaned)
        case NavigationState(phase=ReadyToCommit()):
            await publish_navigation(p, None, charge_hook=False)
        case NavigationState(phase=SummaryPhase()):
            await _dispatch_structural(p, orphaned=orphaned)
        case NavigationState():
            raise InvariantDefect("unknown navigation phase")
        case _:
            assert_never(state)


async def _dispatch_run(p: DrivePass, state: RunState, *, orphaned: bool) -> None:
    phase = state.phase
    match phase:
        case StartingPhase():
            await run.start(p)
        case CheckpointPhase():
            with checkpoint_span(p, "normal") as inner:
                await run.checkpoint(inner)
        case AssistantPhase(generation=generation):
            p = turn_span(p, generation.context.step_id)
            match generation:
                case GenerationReady():
                    await assistant.generate(p)
                case GenerationPending():
                    _require_orphan(orphaned)
                    await assistant.recover_generation(p, generation)
                case GenerationRetryWait():
                    if p.now() >= generation.not_before:
                        await assistant.retry_now(p, generation)
                case _:
                    assert_never(generation)
        case ToolsPhase():
            pending = tools.has_pending(batch_of(state))
            if pending:
                _require_orphan(orphaned)
            await tools.run_batch(turn_span(p, phase.batch.turn_id), restored=orphaned)
        case CompactionPhase():
            with checkpoint_span(p, "compaction") as inner:
                await _dispatch_structural(inner, orphaned=orphaned)
        case DeferredPhase(deferred=current):
            number = current.poll + (0 if isinstance(current, DeferredPending) else 1)
            await deferred.poll(turn_span(p, poll_turn_id(current.step_id, number)))
        case FailureDrainPhase():
            with checkpoint_span(p, "failure_drain") as inner:
                await run.failure_drain(inner)
        case _:
            assert_never(phase)


async def _dispatch_structural(p: DrivePass, *, orphaned: bool) -> None:
    current = structural_of(p.current().state)
    if isinstance(current, Generating):
        generation = current.generation
        if isinstance(generation, SummaryPending):
            _require_orphan(orphaned)
            await structural.recover_summary(p, generation)
            return
        if isinstance(generation, SummaryRetryWait):
            if p.now() >= generation.not_before:
                await structural.summary_retry_now(p, generation)
            return
    await structural.structural_step(p)


def _require_orphan(orphaned: bool) -> None:
    if not orphaned:
        raise InvariantDefect("a pending effect without owner reached ordinary dispatch")
