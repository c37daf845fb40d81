"""Operations in the states that the scheduler's table tells apart."""

from __future__ import annotations

from dataclasses import dataclass

from harness.operation import values
from harness.operation.durable import OperationError
from harness.operation.lane_state import IDLE_LANE, CompactionLastResult, LaneState, RunLastResult
from harness.operation.state import (
    EMPTY_INBOX,
    RUNNING,
    AssistantPhase,
    CancelRequested,
    CompactionIntent,
    CompactionState,
    Deciding,
    DeferredPhase,
    DeferredSuspended,
    Generating,
    GenerationContext,
    GenerationReady,
    GenerationRetryWait,
    OperationMeta,
    OperationState,
    RunIntent,
    RunPhase,
    RunSettings,
    RunState,
    StartingPhase,
    SummaryContext,
    SummaryRetryWait,
)
from harness.settings import (
    CompactionSettings,
    LaneConfiguration,
    ModelIdentity,
    NormalizedRetryPolicy,
    StreamOptions,
)
from harness.storage.writes import Write, delete_value, set_value

CONFIGURATION = LaneConfiguration(
    model=ModelIdentity(provider="test", model_id="test"),
    thinking_level="off",
    active_tool_names=(),
)
RETRY = NormalizedRetryPolicy(max_attempts=3, base_delay_ms=10)
SETTINGS = RunSettings(
    compaction=CompactionSettings(),
    steering_mode="all",
    follow_up_mode="all",
    tool_execution="parallel",
)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of a lane and the writes of its life."""

    id: str
    lane: str = "main"

    def accept(self, state: OperationState | None = None, started_at: int = 1) -> list[Write]:
        meta = OperationMeta(
            operation_id=self.id,
            lane=self.lane,
            source_leaf_id=None,
            started_at=started_at,
            intent=RunIntent(prompt_entry_ids=())
            if not isinstance(state, CompactionState)
            else CompactionIntent(),
        )
        return [
            set_value(values.operation_meta(self.id), meta),
            set_value(values.operation_state(self.id), state or run(StartingPhase())),
            set_value(
                values.lane_state(self.lane),
                LaneState(current_operation_id=self.id, pending_next_run=()),
            ),
        ]

    def move(self, state: OperationState) -> list[Write]:
        return [set_value(values.operation_state(self.id), state)]

    def finish(self, error: OperationError | None = None) -> list[Write]:
        result = RunLastResult(
            operation_id=self.id,
            outcome="completed" if error is None else "failed",
            leaf_id=self.id,
            run_completion="assistant" if error is None else None,
            error=error,
        )
        return [
            delete_value(values.operation_meta(self.id)),
            delete_value(values.operation_state(self.id)),
            set_value(values.lane_last_result(self.lane), result),
            set_value(values.lane_state(self.lane), IDLE_LANE),
        ]

    def decline(self) -> list[Write]:
        result = CompactionLastResult(operation_id=self.id, outcome="declined", leaf_id=self.id)
        return [
            delete_value(values.operation_meta(self.id)),
            delete_value(values.operation_state(self.id)),
            set_value(values.lane_last_result(self.lane), result),
        ]


def run(phase: RunPhase, *, cancelled: bool = False) -> RunState:
    control = (
        CancelRequested(requested_at=1, drained_steer=(), drained_follow_up=())
        if cancelled
        else RUNNING
    )
    return RunState(
        control=control,
        settings=SETTINGS,
        phase=phase,
        inbox=EMPTY_INBOX,
        latest_assistant_entry_id=None,
    )


def _context() -> GenerationContext:
    return GenerationContext(
        step_id="s",
        trigger_entry_id="t",
        configuration=CONFIGURATION,
        stream_options=StreamOptions(),
        retry_policy=RETRY,
        overflow_recovery_used=False,
    )


def ready() -> AssistantPhase:
    return AssistantPhase(generation=GenerationReady(context=_context(), next_attempt=1))


def retry_wait(not_before: int) -> AssistantPhase:
    return AssistantPhase(
        generation=GenerationRetryWait(
            context=_context(), next_attempt=2, not_before=not_before, error_message="busy"
        )
    )


def suspended(poll: int) -> DeferredPhase:
    return DeferredPhase(
        deferred=DeferredSuspended(
            step_id="s",
            source_entry_id="e",
            poll=poll,
            configuration=CONFIGURATION,
            stream_options=StreamOptions(),
        )
    )


def compaction(not_before: int | None = None) -> CompactionState:
    if not_before is None:
        return CompactionState(control=RUNNING, structural=Deciding(task_id="t"))
    context = SummaryContext(
        task_id="t",
        result_entry_id="r",
        kind="compaction",
        configuration=CONFIGURATION,
        stream_options=StreamOptions(),
        retry_policy=RETRY,
        reason="manual",
    )
    return CompactionState(
        control=RUNNING,
        structural=Generating(
            task_id="t",
            generation=SummaryRetryWait(
                context=context, next_attempt=2, not_before=not_before, error_message="busy"
            ),
        ),
    )
