"""Assistant generation: capture, intent, request, settlement, and what a lost request means (§3.7, §4.5)."""

from __future__ import annotations

import asyncio

from harness.codec import JsonValue
from harness.context import Context
from harness.errors import InvariantDefect
from harness.messages import (
    AssistantMessage,
    empty_assistant,
)
from harness.operation.classify import (
    Cancelled,
    Classification,
    Failed,
    WantsTools,
    classify_response,
    is_overflow,
)
from harness.operation.events import RetryEnd, RetryStart
from harness.operation.payloads import CompactionPreparation
from harness.operation.state import (
    AssistantPhase,
    CancelRequested,
    CompactionPhase,
    GenerationPending,
    GenerationReady,
    GenerationRetryWait,
)
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import assistant as transitions
from harness.runtime.lane import Commit, Decision
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.requests import (
    RequestPlan,
    model_missing,
    output_limit,
    patched_options,
    request_response,
)
from harness.runtime.procedures.spans import response_ends, response_step, step_ends
from harness.runtime.procedures.streaming import (
    read_frames,
    report_synthetic,
)
from harness.runtime.procedures.structural import announce
from harness.runtime.procedures.threshold import prepare_overflow
from harness.runtime.procedures.turns import close_settled, close_turn, open_turn
from harness.session.session import SessionMutator


async def generate(p: DrivePass) -> None:
    """Run one attempt of a generation step from `ready` to its settlement."""
    ready = transitions.generation_of(p.run())
    if not isinstance(ready, GenerationReady):
        raise InvariantDefect("generation starts from ready")
    with response_step(p, "assistant", ready.context.step_id, ready.next_attempt) as inner:
        await _attempt(inner, ready)


async def _attempt(p: DrivePass, ready: GenerationReady) -> None:
    configuration = ready.context.configuration
    model = p.core.models.resolve(configuration.model)
    if model is None:
        await fail_configuration(p, *model_missing(configuration))
        return
    missing = [name for name in configuration.active_tool_names if name not in p.core.tools]
    if missing:
        await fail_configuration(
            p,
            "configured_tools_unavailable",
            f"tools are not registered here: {', '.join(missing)}",
            {"tools": missing},
        )
        return
    stream = await patched_options(
        p, model, ready.context.stream_options, "assistant", ready.next_attempt
    )
    response_id, usage_id = p.new_id(), p.new_id()
    limit = output_limit(model, stream)

    def intend(projection: LaneProjection) -> Step:
        return transitions.intend_request(
            projection,
            ready,
            response_entry_id=response_id,
            usage_id=usage_id,
            intended_output_limit=limit,
            context_window=model.context_window,
        )

    await p.step(intend)
    step_id = ready.context.step_id
    if ready.next_attempt > 1:
        await p.emit(
            RetryStart(
                lane=p.lane.name,
                run_id=p.operation_id,
                step=step_id,
                attempt=ready.next_attempt,
            )
        )
    await open_turn(p, step_id, recovery=ready.next_attempt > 1)
    plan = RequestPlan(
        model,
        configuration,
        stream,
        "assistant",
        response_id,
        start=lambda context, options: p.core.models.stream(model, context, options),
    )
    message = await request_response(p, plan)
    await settle(p, message)


async def fail_configuration(p: DrivePass, code: str, message: str, details: JsonValue) -> None:
    """A captured implementation is missing: fail without a fabricated response (§3.7)."""

    def decide(projection: LaneProjection) -> Step:
        return transitions.configuration_failure(projection, code, message, details)

    await p.step(decide)
    step_ends(p, "failed", code)
    await close_turn(p)


async def settle(p: DrivePass, message: AssistantMessage | None, *, recovery: bool = False) -> None:
    """Commit the response with its usage and its consequence. None: nothing was sent (aborted)."""
    pending = transitions.generation_of(p.run())
    if not isinstance(pending, GenerationPending):
        raise InvariantDefect("only a pending generation settles")
    interrupted = recovery
    if message is None:
        message = await synthesize(p, pending, aborted=True, reason=transitions.NEVER_SENT)
        await report_synthetic(p, message, pending.response_entry_id, recovery=recovery)
    overflow = await _overflow_task(p, pending, message)
    # Output had arrived: the provider did not fail, its process did, and no retry is spent on that.
    free = (
        interrupted
        and bool(message.content)
        and await _interruptions_in_a_row(p) < transitions.FREE_INTERRUPTIONS
    )
    await _commit_settlement(p, pending, message, overflow, recovery=interrupted, interrupted=free)


async def _interruptions_in_a_row(p: DrivePass) -> int:
    """How many responses at the end of the branch were cut off by the end of their process."""
    count = 0
    for entry in reversed(await p.lane.context_entries(p.context)):
        if not transitions.is_interrupted(entry):
            break
        count += 1
    return count


async def _overflow_task(
    p: DrivePass, pending: GenerationPending, message: AssistantMessage
) -> tuple[str, CompactionPreparation] | None:
    if pending.context.overflow_recovery_used or p.current().cancelling:
        return None
    if not is_overflow(message, pending.intended_output_limit):
        return None
    preparation = await prepare_overflow(p, pending.context_window, message)
    return None if preparation is None else (p.new_id(), preparation)


async def _commit_settlement(
    p: DrivePass,
    pending: GenerationPending,
    message: AssistantMessage,
    overflow: tuple[str, CompactionPreparation] | None,
    *,
    recovery: bool,
    interrupted: bool,
) -> None:
    identity = pending.context.configuration.model
    model = p.core.models.resolve(identity)

    def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[Classification]:
        state = p.run()
        if transitions.generation_of(state) != pending:
            raise InvariantDefect("another request took this settlement's place")
        outcome = classify_response(
            message,
            state.control,
            intended_output_limit=pending.intended_output_limit,
            model=identity,
            api=None if model is None else model.api,
        )
        if interrupted and isinstance(outcome, Failed):
            outcome = Failed(outcome.message, outcome.retryable, interrupted=True)
        step = transitions.settle_generation(
            projection,
            pending,
            outcome,
            now=p.now(),
            follower=p.follower,
            overflow=overflow,
            recovery=recovery,
        )
        return Commit(step, outcome)

    outcome = await p.transition(plan, cancelled_ok=True)
    await _after_settlement(p, pending, outcome)


async def _after_settlement(
    p: DrivePass, pending: GenerationPending, outcome: Classification
) -> None:
    if p.ended():
        response_ends(p, outcome, retrying=False)
        return
    phase = p.run().phase
    retrying = isinstance(phase, AssistantPhase) and isinstance(
        phase.generation, GenerationRetryWait
    )
    response_ends(p, outcome, retrying=retrying)
    if retrying:
        return
    if pending.attempt > 1:
        failed = isinstance(outcome, Failed | Cancelled)
        await p.emit(
            RetryEnd(
                lane=p.lane.name,
                run_id=p.operation_id,
                step=pending.context.step_id,
                attempt=pending.attempt,
                success=not failed,
                final_error=outcome.message.error_message if failed else None,
            )
        )
    if not isinstance(outcome, WantsTools):
        await close_settled(p, outcome)
    if isinstance(phase, CompactionPhase):
        await announce(p)


async def recover_generation(p: DrivePass, pending: GenerationPending) -> None:
    """A request whose process died: settle what is known under the reserved ids (§4.5)."""
    step_id = pending.context.step_id
    with response_step(p, "assistant", step_id, pending.attempt, recovery=True) as inner:
        aborted = isinstance(p.run().control, CancelRequested)
        message = await synthesize(inner, pending, aborted=aborted)
        await open_turn(inner, step_id, recovery=True)
        await report_synthetic(inner, message, pending.response_entry_id, recovery=True)
        await settle(inner, message, recovery=True)


async def synthesize(
    p: DrivePass,
    pending: GenerationPending,
    *,
    aborted: bool,
    reason: str = transitions.INTERRUPTED,
) -> AssistantMessage:
    """The synthetic settlement of an unknown outcome, from the committed frames."""
    partial = await read_frames(
        p.core.session.storage, p.operation_id, pending.response_entry_id, p.context
    )
    configuration = pending.context.configuration
    zero = empty_assistant(
        provider=configuration.model.provider,
        model=configuration.model.model_id,
        api="unknown",
        timestamp=p.now(),
    )
    return transitions.interrupted_response(
        partial,
        configuration=configuration,
        timestamp=p.now(),
        aborted=aborted,
        zero=zero,
        reason=reason,
    )


async def wait_for_retry(p: DrivePass, not_before: int) -> None:
    """Sleep until `not_before` or until cancellation; the timer is an admitted effect (§4.5)."""
    delay_ms = max(0, not_before - p.now())
    if delay_ms == 0:
        return
    timer = p.gate.admit(
        lambda: asyncio.ensure_future(p.core.environment.clock.sleep(delay_ms / 1_000))
    )
    with p.span("pi.harness.sleep", {"pi.sleep.delay_ms": delay_ms}) as inner:
        stop = asyncio.ensure_future(p.gate.signal.wait())
        try:
            await asyncio.wait((timer, stop), return_when=asyncio.FIRST_COMPLETED)
            inner.conclude({"pi.sleep.outcome": "elapsed" if timer.done() else "aborted"})
        finally:
            timer.cancel()
            stop.cancel()


async def retry_now(p: DrivePass, wait: GenerationRetryWait) -> None:
    """The wait is over: allow the next attempt."""

    def decide(projection: LaneProjection) -> Step:
        if transitions.generation_of(p.run()) != wait:
            raise InvariantDefect("the retry wait changed while it was waited for")
        return transitions.retry_elapsed(projection, wait)

    await p.step(decide)
