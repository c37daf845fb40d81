"""Compaction and summarized navigation: decide, generate, publish, and recover a lost attempt (§3.9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec

from harness.compaction.summarize import (
    SummaryFailed,
    SummaryReply,
    summarize_branch,
    summarize_compaction,
)
from harness.context import Context
from harness.entries import BranchSummaryPayload, CompactionEntry, CompactionPayload, place
from harness.errors import InvariantDefect, StorageCorrupt
from harness.models.protocol import Model, ModelContext
from harness.operation import values
from harness.operation.durable import OperationError
from harness.operation.events import CompactionEnd, CompactionStart, HarnessEvent, NavigationStart
from harness.operation.payloads import (
    BranchPreparation,
    CompactionPreparation,
    StructuralPreparation,
)
from harness.operation.state import (
    CompactionState,
    Deciding,
    Generating,
    NavigationState,
    RunState,
    SummaryContext,
    SummaryPending,
    SummaryReady,
    SummaryRetryWait,
)
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import structural as transitions
from harness.runtime.hooks import BeforeCompaction, BeforeNavigation
from harness.runtime.lane import Commit, Decision
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.navigation import publish_navigation
from harness.runtime.procedures.requests import model_missing
from harness.runtime.procedures.spans import step_ends, summary_step
from harness.runtime.procedures.summary_request import nested_request, pending_summary
from harness.session.session import SessionMutator
from harness.settings import normalize_retry
from harness.storage.protocol import CommitResult
from harness.usage import NewUsageRow


async def announce(p: DrivePass, *, recovery: bool = False) -> None:
    """Report the start of structural work once per process."""
    operation = p.current()
    structural = transitions.structural_of(operation.state)
    if structural is None or p.lane.open_structural == structural.task_id:
        return
    p.lane.open_structural = structural.task_id
    lane, run_id = p.lane.name, operation.id
    if isinstance(operation.state, NavigationState):
        start: HarnessEvent = NavigationStart(
            lane=lane, run_id=run_id, target_id=operation.state.target_id, recovery=recovery
        )
    else:
        start = CompactionStart(
            lane=lane,
            run_id=run_id,
            reason=transitions.reason_of(operation.state),
            recovery=recovery,
        )
    await p.emit(start)


async def structural_step(p: DrivePass) -> None:
    """Advance structural work by one phase."""
    await announce(p, recovery=True)
    structural = transitions.structural_of(p.current().state)
    match structural:
        case Deciding():
            await _decide(p, structural)
        case Generating(generation=SummaryReady() as ready):
            with summary_step(p, ready.context, ready.next_attempt) as inner:
                await _attempt(inner, ready)
        case Generating(generation=SummaryPending() as pending):
            raise InvariantDefect(f"attempt {pending.attempt} has no owner")
        case Generating(generation=SummaryRetryWait()) | None:
            raise InvariantDefect("structural work has nothing to do here")
        case Generating():
            raise InvariantDefect("unknown generation state")
        case _:
            assert_never(structural)


async def read_preparation(p: DrivePass, task_id: str) -> StructuralPreparation:
    """The stored input of the task; its absence is corruption."""
    stored = await p.core.session.storage.get_value(
        values.operation_preparation(p.operation_id, task_id), p.context
    )
    if stored is None:
        missing = StorageCorrupt(f"preparation {task_id} is missing")
        raise p.core.fault(missing, p.context, p.lane.name)
    return stored.value


async def _decide(p: DrivePass, deciding: Deciding) -> None:
    preparation = await read_preparation(p, deciding.task_id)
    state = p.current().state
    if isinstance(preparation, CompactionPreparation):
        if await _decided_compaction(p, preparation):
            return
        kind, reason = "compaction", transitions.reason_of(state)
    else:
        if await _decided_navigation(p, preparation):
            return
        kind, reason = "branch_summary", None
    result_id = p.new_id()
    async with p.core.settings_line:
        options = msgspec.structs.replace(p.core.stream_options, deferred=None)
        policy = normalize_retry(p.core.retry)

        def begin(projection: LaneProjection) -> Step:
            return transitions.begin_summary(
                projection,
                SummaryContext(
                    task_id=deciding.task_id,
                    result_entry_id=result_id,
                    kind="compaction" if kind == "compaction" else "branch_summary",
                    configuration=projection.config,
                    stream_options=options,
                    retry_policy=policy,
                    reason=reason,
                ),
            )

        await p.step(begin)


async def _decided_compaction(p: DrivePass, preparation: CompactionPreparation) -> bool:
    if not p.core.hooks.has("before_compaction"):
        return False
    state = p.current().state
    event = BeforeCompaction(
        lane=p.lane.name,
        run_id=p.operation_id,
        reason=transitions.reason_of(state),
        preparation=preparation,
        custom_instructions=state.custom_instructions
        if isinstance(state, CompactionState)
        else None,
    )
    decision = await p.hook(lambda context: p.core.hooks.before_compaction(event, context))
    if decision.decline:

        async def decline(
            projection: LaneProjection, mutator: SessionMutator, context: Context
        ) -> Decision[None]:
            owned = await p.owned_addresses(mutator, context)
            return Commit(transitions.decline_compaction(projection, owned), None)

        await p.transition(decline)
        p.lane.open_structural = None
        return True
    if decision.compaction is not None:
        payload = msgspec.structs.replace(decision.compaction, from_hook=True)
        await _publish_compaction(p, p.new_id(), payload, charge_hook=True)
        return True
    return False


async def _decided_navigation(p: DrivePass, preparation: BranchPreparation) -> bool:
    if not p.core.hooks.has("before_navigation"):
        return False
    state = p.current().state
    if not isinstance(state, NavigationState) or state.target_id is None:
        raise InvariantDefect("a summarized navigation has a target")
    event = BeforeNavigation(
        lane=p.lane.name,
        run_id=p.operation_id,
        target_id=state.target_id,
        preparation=preparation,
        custom_instructions=state.custom_instructions,
    )
    decision = await p.hook(lambda context: p.core.hooks.before_navigation(event, context))
    if decision.decline:
        await end_standalone(p, "declined")
        return True
    if decision.summary is not None:
        source = p.current().meta.source_leaf_id
        payload = msgspec.structs.replace(decision.summary, from_hook=True, from_id=source)
        await publish_navigation(p, (p.new_id(), payload), charge_hook=True)
        return True
    return False


async def end_standalone(
    p: DrivePass,
    outcome: Literal["failed", "aborted", "declined"],
    error: OperationError | None = None,
    *,
    cancelled_ok: bool = False,
) -> None:
    """End a standalone structural operation without publishing anything."""

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        owned = await p.owned_addresses(mutator, context)
        return Commit(transitions.end_structural(projection, owned, outcome, error), None)

    await p.transition(plan, cancelled_ok=cancelled_ok)
    p.lane.open_structural = None


async def _attempt(p: DrivePass, ready: SummaryReady) -> None:
    context = ready.context
    model = p.core.models.resolve(context.configuration.model)
    if model is None:
        code, message, details = model_missing(context.configuration)
        await _fail(
            p, OperationError(code=code, message=message, details=details), configuration=True
        )
        step_ends(p, "failed", code)
        return
    preparation = await read_preparation(p, context.task_id)

    def begin(projection: LaneProjection) -> Step:
        return transitions.begin_attempt(projection, ready)

    await p.step(begin)
    try:
        payload = await _generate(p, preparation, model)
    except SummaryFailed as failure:
        await _attempt_failed(p, failure)
        return
    if isinstance(payload, CompactionPayload):
        await _publish_compaction(p, context.result_entry_id, payload, charge_hook=False)
    else:
        await publish_navigation(p, (context.result_entry_id, payload), charge_hook=False)
        p.lane.open_structural = None
    step_ends(p, "succeeded")


async def _generate(
    p: DrivePass, preparation: StructuralPreparation, model: Model
) -> CompactionPayload | BranchSummaryPayload:
    state = p.current().state
    index = 0

    async def ask(model_context: ModelContext, limit: int) -> SummaryReply:
        nonlocal index
        index += 1
        return await nested_request(p, model, model_context, limit, index)

    if isinstance(preparation, CompactionPreparation):
        custom = state.custom_instructions if isinstance(state, CompactionState) else None
        return await summarize_compaction(preparation, model, custom, ask)
    custom = state.custom_instructions if isinstance(state, NavigationState) else None
    return await summarize_branch(preparation, model, p.current().meta.source_leaf_id, custom, ask)


async def _attempt_failed(p: DrivePass, failure: SummaryFailed) -> None:
    pending = pending_summary(p)
    if failure.retryable and pending.attempt < pending.context.retry_policy.max_attempts:

        def retry(projection: LaneProjection) -> Step:
            return transitions.retry_summary(
                projection,
                pending_summary(p),
                now=p.now(),
                error_message=str(failure),
                retry_after_ms=failure.retry_after_ms,
            )

        await p.step(retry)
        step_ends(p, "retry", "retryable")
        return
    error = OperationError(code="summary_failed", message=str(failure))
    await _fail(p, error)
    step_ends(p, "failed", error.code)


async def _fail(p: DrivePass, error: OperationError, *, configuration: bool = False) -> None:
    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        owned = await p.owned_addresses(mutator, context)
        return Commit(
            transitions.fail_structural(projection, owned, error, configuration=configuration), None
        )

    await p.transition(plan)
    p.lane.open_structural = None


async def recover_summary(p: DrivePass, pending: SummaryPending) -> None:
    """An attempt whose process died is wholly uncertain: try again under the policy or fail (§4.5)."""
    await announce(p, recovery=True)
    with summary_step(p, pending.context, pending.attempt, recovery=True) as inner:
        await _settle_lost_attempt(inner, pending)


async def _settle_lost_attempt(p: DrivePass, pending: SummaryPending) -> None:
    if pending.attempt < pending.context.retry_policy.max_attempts:

        def retry(projection: LaneProjection) -> Step:
            return transitions.retry_summary(
                projection,
                pending,
                now=p.now(),
                error_message="the attempt was interrupted when its process stopped",
                recovery=True,
            )

        await p.step(retry)
        step_ends(p, "retry", "interrupted")
        return
    error = OperationError(
        code="summary_interrupted",
        message="the last attempt was interrupted when its process stopped",
    )
    await _fail(p, error)
    step_ends(p, "failed", error.code)


async def summary_retry_now(p: DrivePass, wait: SummaryRetryWait) -> None:
    """The wait is over: allow the next attempt."""

    def decide(projection: LaneProjection) -> Step:
        return transitions.summary_retry_elapsed(projection, wait)

    await p.step(decide)


async def _publish_compaction(
    p: DrivePass, entry_id: str, payload: CompactionPayload, *, charge_hook: bool
) -> None:
    operation = p.current()
    reason = transitions.reason_of(operation.state)
    charge = payload.usage if charge_hook else None
    usage_id = p.new_id()

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        standalone = not isinstance(p.current().state, RunState)
        owned = await p.owned_addresses(mutator, context) if standalone else []
        step, index = transitions.publish_compaction(
            projection,
            entry_id,
            payload,
            hook_usage=None
            if charge is None
            else NewUsageRow(id=usage_id, usage=charge, entry_id=entry_id),
            owned=owned,
        )
        parent = projection.leaf_id

        def end(result: CommitResult) -> Sequence[HarnessEvent]:
            entry = place(
                payload,
                id=entry_id,
                parent_id=parent,
                seq=result.seqs[index],
                timestamp=result.timestamp,
            )
            assert isinstance(entry, CompactionEntry)
            return (
                CompactionEnd(
                    lane=projection.lane,
                    run_id=operation.id,
                    reason=reason,
                    outcome="completed",
                    entry=entry,
                    from_hook=payload.from_hook,
                ),
            )

        return Commit(step, None, end)

    await p.transition(plan)
    p.lane.open_structural = None
