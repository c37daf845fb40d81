"""Acceptance of operations: normalize, then one transaction; nothing is started (§3.6)."""

from __future__ import annotations

from typing import TypeAlias, assert_never

from harness.compaction.prepare import Limits, prepare_branch_summary, prepare_compaction
from harness.compaction.tokens import fitted
from harness.context import Context
from harness.entries import Entry
from harness.errors import (
    Closed,
    HarnessClosed,
    InvalidMessage,
    InvalidNavigation,
    LaneBusy,
    NothingToCompact,
    OperationKind,
    UnknownSkill,
    UnknownTarget,
    UnknownTemplate,
)
from harness.ids import parse_uuid7
from harness.messages import AgentMessage
from harness.operation.lane_state import (
    CompactionLastResult,
    LaneLastResult,
    NavigationLastResult,
    RunLastResult,
)
from harness.operation.payloads import StructuralPreparation
from harness.operation.results import OperationAdmission
from harness.operation.state import NavigationIntent
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions.acceptance import (
    accept_compaction,
    accept_navigation,
    accept_run,
    busy,
)
from harness.result import Err, Ok, Result
from harness.runtime.lane import Commit, Decision, Decline, Lane
from harness.runtime.procedures.base import read_queue
from harness.runtime.requests import (
    CompactionRequest,
    NavigationRequest,
    OperationRequest,
    PromptRequest,
    SkillRequest,
    TemplateRequest,
    normalize_input,
)
from harness.runtime.resources import expand_skill, expand_template
from harness.session.projection import load_context_entries, project_entry
from harness.session.session import SessionMutator
from harness.storage.protocol import BranchScan

AdmissionError: TypeAlias = (
    LaneBusy
    | InvalidMessage
    | UnknownSkill
    | UnknownTemplate
    | NothingToCompact
    | InvalidNavigation
    | UnknownTarget
    | Closed
)
Admission: TypeAlias = Result[OperationAdmission, AdmissionError]

CLOSED = Closed(message="the harness is closed")


async def accept(lane: Lane, request: OperationRequest, context: Context) -> Admission:
    """Accept one operation durably. Raises `InvalidArgument` for an id that is no UUIDv7."""
    operation_id = (
        lane.core.environment.ids.next()
        if request.operation_id is None
        else parse_uuid7(request.operation_id)
    )
    try:
        lane.core.check()
        match request:
            case PromptRequest():
                prompts = normalize_input(
                    request.prompt, request.images, lane=lane.name, now=_now(lane)
                )
                if isinstance(prompts, InvalidMessage):
                    return Err(prompts)
                return await _accept_run(lane, operation_id, prompts, context)
            case SkillRequest(name=name):
                skill = lane.core.resources.skill(name)
                if skill is None:
                    return Err(UnknownSkill(message=f"no skill {name!r}", name=name))
                text = expand_skill(skill, request.additional_instructions)
                return await _accept_text(lane, operation_id, text, context)
            case TemplateRequest(name=name):
                template = lane.core.resources.template(name)
                if template is None:
                    return Err(UnknownTemplate(message=f"no prompt template {name!r}", name=name))
                text = expand_template(template, request.args)
                return await _accept_text(lane, operation_id, text, context)
            case CompactionRequest():
                return await _accept_compaction(lane, operation_id, request, context)
            case NavigationRequest():
                return await _accept_navigation(lane, operation_id, request, context)
            case _:
                assert_never(request)
    except HarnessClosed:
        return Err(CLOSED)


def _now(lane: Lane) -> int:
    return lane.core.environment.clock.now_ms()


def _occupied(lane: Lane, projection: LaneProjection) -> LaneBusy | None:
    """The rejection while an operation is open, or while one that was ended from outside leaves."""
    rejected = busy(projection)
    drive = lane.drive
    if rejected is None and drive is not None and drive.finalizing:
        return LaneBusy(
            message=f"the work of an ended operation still leaves lane {lane.name}",
            lane=lane.name,
            operation_id=drive.operation_id,
            operation_kind="run"
            if projection.last_result is None
            else _kind_of(projection.last_result),
        )
    return rejected


def _kind_of(result: LaneLastResult) -> OperationKind:
    match result:
        case RunLastResult():
            return "run"
        case CompactionLastResult():
            return "compaction"
        case NavigationLastResult():
            return "navigation"
        case _:
            assert_never(result)


async def _accept_text(lane: Lane, operation_id: str, text: str, context: Context) -> Admission:
    prompts = normalize_input(text, (), lane=lane.name, now=_now(lane))
    if isinstance(prompts, InvalidMessage):
        return Err(prompts)
    return await _accept_run(lane, operation_id, prompts, context)


async def _accept_run(
    lane: Lane, operation_id: str, messages: tuple[AgentMessage, ...], context: Context
) -> Admission:
    ids = lane.core.environment.ids
    prompts = tuple((ids.next(), message) for message in messages)

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[Admission]:
        rejected = _occupied(lane, projection)
        if rejected is not None:
            return Decline(Err(rejected))
        captured = await read_queue(mutator, projection.state.pending_next_run, inner)
        started_at = _now(lane)
        step = accept_run(
            projection,
            operation_id=operation_id,
            started_at=started_at,
            prompts=prompts,
            captured=captured,
            settings=lane.core.run_settings(),
        )
        return _decided(step, operation_id, "run", started_at)

    return await lane.command(plan, context)


def _decided(
    step: Step | LaneBusy | InvalidMessage,
    operation_id: str,
    kind: str,
    started_at: int,
) -> Decision[Admission]:
    if not isinstance(step, Step):
        return Decline(Err(step))
    operation = step.projection.operation
    assert operation is not None
    assert operation.kind == kind
    return Commit(
        step,
        Ok(
            OperationAdmission(
                operation_id=operation_id, kind=operation.kind, started_at=started_at
            )
        ),
    )


async def _accept_compaction(
    lane: Lane, operation_id: str, request: CompactionRequest, context: Context
) -> Admission:
    while True:
        admission = await _try_compaction(lane, operation_id, request, context)
        if admission is not None:
            return admission


async def _try_compaction(
    lane: Lane, operation_id: str, request: CompactionRequest, context: Context
) -> Admission | None:
    task_id = lane.core.environment.ids.next()
    # Prepared off the line; the command discards it when its sources moved meanwhile.
    leaf = lane.projection.leaf_id
    settings = lane.core.compaction
    entries = await load_context_entries(lane.core.session.storage, leaf, context)
    messages: list[AgentMessage] = []
    for entry in entries:
        messages += await project_entry(entry, lane.core.projectors, context)
    model = lane.core.models.resolve(lane.projection.config.model)
    limits = None if model is None else Limits(model.context_window)
    preparation = prepare_compaction(entries, messages, settings, limits)

    def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[Admission | None]:
        rejected = _occupied(lane, projection)
        if rejected is not None:
            return Decline(Err(rejected))
        if projection.leaf_id != leaf or lane.core.compaction != settings:
            return Decline(None)
        if preparation is None:
            return Decline(Err(NothingToCompact(message="nothing to compact", lane=lane.name)))
        started_at = _now(lane)
        step = accept_compaction(
            projection,
            operation_id=operation_id,
            started_at=started_at,
            task_id=task_id,
            preparation=preparation,
            custom_instructions=request.custom_instructions,
        )
        lane.open_structural = task_id
        return _decided(step, operation_id, "compaction", started_at)

    return await lane.command(plan, context)


async def _accept_navigation(
    lane: Lane, operation_id: str, request: NavigationRequest, context: Context
) -> Admission:
    intent = NavigationIntent(
        target_id=request.target_id,
        summarize=request.options.summarize,
        label=request.options.label,
        custom_instructions=request.options.custom_instructions,
    )
    while True:
        admission = await _try_navigation(lane, operation_id, request, intent, context)
        if admission is not None:
            return admission


async def _try_navigation(
    lane: Lane,
    operation_id: str,
    request: NavigationRequest,
    intent: NavigationIntent,
    context: Context,
) -> Admission | None:
    task_id = lane.core.environment.ids.next()
    source = lane.projection.leaf_id
    preparation: StructuralPreparation | None = None
    if request.options.summarize and source is not None and request.target_id is not None:
        preparation = await _prepare_branch(lane, source, request.target_id, context)

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, inner: Context
    ) -> Decision[Admission | None]:
        rejected = _occupied(lane, projection)
        if rejected is not None:
            return Decline(Err(rejected))
        problem = await _navigation_problem(lane, projection, request, mutator, inner)
        if problem is not None:
            return Decline(Err(problem))
        if projection.leaf_id != source:
            return Decline(None)
        started_at = _now(lane)
        task = None if preparation is None else (task_id, preparation)
        step = accept_navigation(
            projection,
            operation_id=operation_id,
            started_at=started_at,
            intent=intent,
            task=task,
        )
        if task is not None:
            lane.open_structural = task_id
        return _decided(step, operation_id, "navigation", started_at)

    return await lane.command(plan, context)


async def _navigation_problem(
    lane: Lane,
    projection: LaneProjection,
    request: NavigationRequest,
    mutator: SessionMutator,
    context: Context,
) -> InvalidNavigation | UnknownTarget | None:
    target = request.target_id
    reason: str | None = None
    if target == projection.leaf_id:
        reason = "the lane already stands there"
    elif target is None and request.options.label is not None:
        reason = "the root cannot carry a label"
    elif target is None and request.options.summarize:
        reason = "a summary needs an entry to stand below"
    elif request.options.summarize and projection.leaf_id is None:
        reason = "there is nothing to summarize at the root"
    if reason is not None:
        return InvalidNavigation(
            message=f"cannot navigate: {reason}", lane=lane.name, reason=reason
        )
    if target is not None and target not in await mutator.get_entries([target], context):
        return UnknownTarget(message=f"no entry {target}", target_id=target)
    return None


async def _prepare_branch(
    lane: Lane, source: str, target: str, context: Context
) -> StructuralPreparation | None:
    """Summarize what the lane leaves: from its leaf down to the common ancestor with the target."""
    storage = lane.core.session.storage
    if target not in await storage.get_entries([target], context):
        return None
    kept = {
        structure.id
        for structure in await storage.scan_branch_structure(BranchScan(start=target), context)
    }
    left: list[Entry] = []
    for entry in await storage.scan_branch(BranchScan(start=source), context):
        if entry.id in kept:
            break
        left.append(entry)
    left.reverse()
    messages: list[AgentMessage] = []
    for entry in left:
        messages += await project_entry(entry, lane.core.projectors, context)
    model = lane.core.models.resolve(lane.projection.config.model)
    window = 128_000 if model is None else model.context_window
    budget = max(1, window - fitted(lane.core.compaction, window).reserve_tokens)
    return prepare_branch_summary(messages, budget)
