"""Transitions of assistant generation: capture, intent, settlement by classification (§3.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

import msgspec

from harness.codec import JsonValue
from harness.entries import Entry, MessageEntry, MessagePayload
from harness.errors import InvariantDefect
from harness.messages import AssistantMessage, tool_calls
from harness.operation import values
from harness.operation.classify import (
    Cancelled,
    Classification,
    Failed,
    Finished,
    Overflow,
    Suspended,
    WantsTools,
)
from harness.operation.durable import OperationError
from harness.operation.events import RetryScheduled
from harness.operation.payloads import CompactionPreparation
from harness.operation.state import (
    AssistantPhase,
    CallPlanned,
    CheckpointPhase,
    CompactionPhase,
    ConfigurationProvenance,
    Deciding,
    DeferredPhase,
    DeferredSuspended,
    FailureDrainPhase,
    GenerationContext,
    GenerationPending,
    GenerationReady,
    GenerationRetryWait,
    MayFinish,
    NeedAssistant,
    ResponseProvenance,
    RunPhase,
    RunState,
    ToolBatch,
    ToolsPhase,
)
from harness.operation.step import Draft, LaneProjection, Step, change_run, run_state
from harness.operation.transitions.checkpoint import checkpoint_of
from harness.settings import (
    LaneConfiguration,
    NormalizedRetryPolicy,
    StreamOptions,
    retry_delay_ms,
    saturating_add,
)
from harness.usage import NewUsageRow

FollowerIds = Callable[[str], str]


def begin_generation(
    projection: LaneProjection,
    *,
    step_id: str,
    stream_options: StreamOptions,
    retry_policy: NormalizedRetryPolicy,
) -> Step:
    """Capture configuration for one step; a pending skip of the inbox is spent."""
    _, state = run_state(projection)
    checkpoint = checkpoint_of(state)
    continuation = checkpoint.continuation
    if not isinstance(continuation, NeedAssistant):
        raise InvariantDefect("generation began although no assistant turn is owed")
    context = GenerationContext(
        step_id=step_id,
        trigger_entry_id=checkpoint.trigger_entry_id,
        configuration=projection.config,
        stream_options=stream_options,
        retry_policy=retry_policy,
        overflow_recovery_used=continuation.overflow_recovery_used,
    )
    return _phase(
        projection, AssistantPhase(generation=GenerationReady(context=context, next_attempt=1))
    )


def configuration_failure(
    projection: LaneProjection, code: str, message: str, details: JsonValue
) -> Step:
    """A captured model or tool definition is missing: fail without fabricating a response."""
    return _phase(
        projection,
        FailureDrainPhase(
            error=OperationError(code=code, message=message, details=details),
            provenance=ConfigurationProvenance(),
        ),
    )


def intend_request(
    projection: LaneProjection,
    ready: GenerationReady,
    *,
    response_entry_id: str,
    usage_id: str,
    intended_output_limit: int,
    context_window: int,
) -> Step:
    """Reserve the response and its ledger row before anything is sent."""
    return _phase(
        projection,
        AssistantPhase(
            generation=GenerationPending(
                context=ready.context,
                attempt=ready.next_attempt,
                response_entry_id=response_entry_id,
                usage_id=usage_id,
                intended_output_limit=intended_output_limit,
                context_window=context_window,
            )
        ),
    )


def retry_elapsed(projection: LaneProjection, wait: GenerationRetryWait) -> Step:
    """The wait is over; the next attempt may be prepared."""
    return _phase(
        projection,
        AssistantPhase(
            generation=GenerationReady(context=wait.context, next_attempt=wait.next_attempt)
        ),
    )


def settle_generation(
    projection: LaneProjection,
    pending: GenerationPending,
    outcome: Classification,
    *,
    now: int,
    follower: FollowerIds,
    overflow: tuple[str, CompactionPreparation] | None = None,
    recovery: bool = False,
) -> Step:
    """Commit response, usage and decision together, and drop the stream frames.

    `overflow` is the task id and preparation of an overflow compaction when one is possible.
    """
    operation, state = run_state(projection)
    response_id = pending.response_entry_id
    message = outcome.message
    draft = settled_response(
        projection, operation.id, response_id, pending.usage_id, message, recovery=recovery
    )
    context = pending.context
    phase: RunPhase
    match outcome:
        case Cancelled():
            phase = finish_checkpoint(response_id, include=True)
        case Overflow():
            if context.overflow_recovery_used or overflow is None:
                phase = _does_not_fit(response_id, message, context.overflow_recovery_used)
            else:
                task_id, preparation = overflow
                draft.set(values.operation_preparation(operation.id, task_id), preparation)
                phase = CompactionPhase(
                    reason="overflow",
                    structural=Deciding(task_id=task_id),
                    resume_after=CheckpointPhase(
                        continuation=NeedAssistant(overflow_recovery_used=True),
                        trigger_entry_id=context.trigger_entry_id,
                    ),
                )
        case Suspended():
            phase = DeferredPhase(
                deferred=DeferredSuspended(
                    step_id=context.step_id,
                    source_entry_id=response_id,
                    poll=0,
                    configuration=context.configuration,
                    stream_options=context.stream_options,
                )
            )
        case Failed(retryable=retryable, interrupted=interrupted):
            policy = context.retry_policy
            if interrupted or (retryable and pending.attempt < policy.max_attempts):
                next_attempt = pending.attempt if interrupted else pending.attempt + 1
                delay = (
                    0
                    if interrupted
                    else max(retry_delay_ms(policy, pending.attempt), message.retry_after_ms or 0)
                )
                error_message = message.error_message or "the provider failed"
                phase = AssistantPhase(
                    generation=GenerationRetryWait(
                        context=context,
                        next_attempt=next_attempt,
                        not_before=saturating_add(now, delay),
                        error_message=error_message,
                    )
                )
                draft.event(
                    RetryScheduled(
                        lane=projection.lane,
                        run_id=operation.id,
                        step=context.step_id,
                        attempt=next_attempt,
                        max_attempts=policy.max_attempts,
                        delay_ms=delay,
                        error_message=error_message,
                        recovery=recovery,
                    )
                )
            else:
                phase = response_failure(response_id, message, "provider_error")
        case WantsTools():
            phase = plan_tools(
                response_id, message, context.configuration, context.step_id, follower
            )
        case Finished():
            phase = finish_checkpoint(response_id, include=True)
        case _:
            assert_never(outcome)
    draft.state(change_run(state, phase=phase, latest_assistant_entry_id=response_id))
    return draft.build()


def settled_response(
    projection: LaneProjection,
    operation_id: str,
    response_id: str,
    usage_id: str,
    message: AssistantMessage,
    *,
    recovery: bool,
) -> Draft:
    """The writes that every settlement shares: response, ledger row, leaf, end of the frames."""
    draft = Draft(projection)
    draft.entry(response_id, MessagePayload(message=message), recovery=recovery)
    draft.usage(NewUsageRow(id=usage_id, usage=message.usage, entry_id=response_id))
    draft.leaf_write()
    draft.delete_frames(operation_id, response_id)
    return draft


def plan_tools(
    response_id: str,
    message: AssistantMessage,
    configuration: LaneConfiguration,
    turn_id: str,
    follower: FollowerIds,
) -> ToolsPhase:
    """Reserve one result id per call, each a follower of the response (§1.2)."""
    return ToolsPhase(
        batch=ToolBatch(
            assistant_entry_id=response_id,
            configuration=configuration,
            turn_id=turn_id,
            calls=tuple(
                CallPlanned(source_index=index, result_entry_id=follower(response_id))
                for index, _ in tool_calls(message)
            ),
        )
    )


def finish_checkpoint(trigger_entry_id: str, *, include: bool) -> CheckpointPhase:
    """The boundary at which a run may end."""
    return CheckpointPhase(
        continuation=MayFinish(include_final_assistant=include), trigger_entry_id=trigger_entry_id
    )


def response_failure(response_id: str, message: AssistantMessage, code: str) -> FailureDrainPhase:
    """The run fails because of this response, unless queued input rescues it."""
    return FailureDrainPhase(
        error=OperationError(code=code, message=message.error_message or "the provider failed"),
        provenance=ResponseProvenance(entry_id=response_id),
    )


def _does_not_fit(
    response_id: str, message: AssistantMessage, compacted: bool
) -> FailureDrainPhase:
    why = "not even after a compaction" if compacted else "and it could not be made shorter"
    return FailureDrainPhase(
        error=OperationError(
            code="context_overflow",
            message=f"the conversation does not fit the model's context, {why}: "
            f"{message.error_message or 'the provider gave no reason'}",
        ),
        provenance=ResponseProvenance(entry_id=response_id),
    )


def _phase(projection: LaneProjection, phase: RunPhase) -> Step:
    _, state = run_state(projection)
    draft = Draft(projection)
    draft.state(change_run(state, phase=phase))
    return draft.build()


def generation_of(state: RunState) -> GenerationReady | GenerationPending | GenerationRetryWait:
    """The generation of an assistant phase; anything else is a defect of the caller."""
    if not isinstance(state.phase, AssistantPhase):
        raise InvariantDefect(f"expected generation, found {type(state.phase).__name__}")
    return state.phase.generation


# So many interruptions in a row are forgiven; after that a response that ends its process each
# time it is streamed spends retries like any other failure.
FREE_INTERRUPTIONS = 16

NEVER_SENT = "Cancelled before the request was sent."
INTERRUPTED = (
    "The request was interrupted when its process stopped. What precedes is the latest part that "
    "was saved; newer output may be missing, and whether the provider finished is unknown."
)


def is_interrupted(entry: Entry) -> bool:
    """Whether an entry is the synthetic settlement of a response whose process died."""
    return (
        isinstance(entry, MessageEntry)
        and isinstance(entry.message, AssistantMessage)
        and entry.message.stop_reason == "error"
        and entry.message.error_message == INTERRUPTED
    )


def interrupted_response(
    partial: AssistantMessage | None,
    *,
    configuration: LaneConfiguration,
    timestamp: int,
    aborted: bool,
    zero: AssistantMessage,
    reason: str = INTERRUPTED,
) -> AssistantMessage:
    """The synthetic settlement of a request whose outcome nobody knows: zero usage, saved partial."""
    base = zero if partial is None else partial
    return msgspec.structs.replace(
        base,
        usage=zero.usage,
        provider=configuration.model.provider if partial is None else base.provider,
        model=configuration.model.model_id if partial is None else base.model,
        stop_reason="aborted" if aborted else "error",
        error_message=reason,
        error_kind=None if aborted else "retryable",
        deferred=None,
        timestamp=timestamp,
    )
