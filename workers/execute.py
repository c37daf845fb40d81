"""Runs a command on an open harness: a dispatch onto its surface and nothing else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, assert_never

from harness.codec import encode
from harness.context import Context
from harness.errors import (
    HarnessError,
    InvalidArgument,
    LaneBusy,
    NoActiveOperation,
    NothingToResume,
    OperationMismatch,
    TaggedError,
    UnknownTarget,
)
from harness.operation.results import LaneExecution, OperationAdmission, QueuedEntry
from harness.result import Err, Ok, Result
from harness.runtime.agent_lane import AgentLane
from harness.runtime.harness import AgentHarness
from harness.session.once import Once, Superseded
from harness.settings import LaneConfiguration, ModelIdentity
from workers.commands import (
    Abort,
    Accept,
    AppendCustom,
    AppendMessage,
    CancelQueued,
    Command,
    ConfigureLane,
    CreateLane,
    Drive,
    FollowUp,
    Inspect,
    InspectLanes,
    InvalidRequest,
    NextRun,
    RecordedUsage,
    RecordUsage,
    Reply,
    RequestAbort,
    RequestInProgress,
    RequestKey,
    Resume,
    SetLabel,
    SetName,
    Steer,
    UnknownLane,
    UnknownModel,
)

_NOTHING = Ok(b"null")


class NeedsDriver(HarnessError):
    """The command waits for an operation that this owner will not drive; let a worker own the
    session and try again."""

    def __init__(self, operation_id: str) -> None:
        super().__init__(f"operation {operation_id} must be driven first")
        self.operation_id = operation_id


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a command needs beside the harness.

    `drives` says whether this owner drives what it accepts; `find_model` whether a model is
    configured; `find_admission` looks an operation id up in the receipts: the admission it had, or
    None when it is new; `once` sees to it that what a request asks for is made once under its key.
    """

    drives: bool
    find_model: Callable[[ModelIdentity], bool]
    find_admission: Callable[[str], Awaitable[OperationAdmission | None]]
    once: Callable[[RequestKey | None], Once | None]


async def execute(
    harness: AgentHarness, command: Command, surroundings: Surroundings, context: Context
) -> Reply:
    """Run one command. Raises `HarnessFault`, `HarnessClosed` and `NeedsDriver`; nothing of an
    abort or a resumption is driven here."""
    try:
        return await _execute(harness, command, surroundings, context)
    except InvalidArgument as error:
        return Err(InvalidRequest(message=str(error)))
    except Superseded as error:
        return Err(RequestInProgress(message=str(error)))


async def _execute(
    harness: AgentHarness, command: Command, surroundings: Surroundings, context: Context
) -> Reply:
    match command:
        case SetName(name=name):
            await harness.tree.set_name(name, context)
            return _NOTHING
        case SetLabel(target_id=target, label=label):
            if await harness.tree.get_entry(target, context) is None:
                return Err(UnknownTarget(message=f"no entry {target}", target_id=target))
            await harness.tree.set_label(target, label, context)
            return _NOTHING
        case InspectLanes():
            return Ok(encode(await harness.lanes(context)))
        case CreateLane(name=name, at=at, request=request):
            once = surroundings.once(request)
            created = await harness.create_lane(name, at, context, once=once)
            if isinstance(created, Err):
                return Err(created.error)
            return Ok(encode(await created.value.inspect_execution(context)))
        case (
            Accept()
            | Steer()
            | FollowUp()
            | NextRun()
            | CancelQueued()
            | RequestAbort()
            | Abort()
            | Resume()
            | ConfigureLane()
            | AppendMessage()
            | AppendCustom()
            | RecordUsage()
            | Inspect()
            | Drive()
        ):
            lane = await harness.lane(command.lane, context)
            if lane is None:
                return Err(UnknownLane(message=f"no lane {command.lane!r}", lane=command.lane))
            return await _on_lane(lane, command, surroundings, context)
        case _:
            assert_never(command)


async def _on_lane(  # noqa: C901 -- one flat dispatch, a line or two for each command
    lane: AgentLane,
    command: (
        Accept
        | Steer
        | FollowUp
        | NextRun
        | CancelQueued
        | RequestAbort
        | Abort
        | Resume
        | ConfigureLane
        | AppendMessage
        | AppendCustom
        | RecordUsage
        | Inspect
        | Drive
    ),
    surroundings: Surroundings,
    context: Context,
) -> Reply:
    match command:
        case Accept():
            return await _accept(lane, command, surroundings, context)
        case Steer(message=message, images=images, request=request):
            once = surroundings.once(request)
            return _reply(await lane.steer(message, context, images=images, once=once))
        case FollowUp(message=message, images=images, request=request):
            once = surroundings.once(request)
            return _reply(await lane.follow_up(message, context, images=images, once=once))
        case NextRun(message=message, images=images, request=request):
            once = surroundings.once(request)
            return _reply(await lane.next_run(message, context, images=images, once=once))
        case CancelQueued(entry_id=entry_id):
            return _reply(await lane.cancel_queued(entry_id, context))
        case RequestAbort(operation_id=operation_id):
            return _reply(await lane.request_abort(operation_id, context))
        case Abort():
            return await _abort(lane, context)
        case Resume():
            execution = await lane.inspect_execution(context)
            if execution.current is None:
                return Err(NothingToResume(message=f"lane {lane.name} is idle", lane=lane.name))
            return Ok(encode(execution))
        case ConfigureLane():
            return await _configure(lane, command, surroundings, context)
        case AppendMessage(message=message, request=request):
            await _check_appendable(lane, surroundings, context)
            once = surroundings.once(request)
            entry_id = await lane.tree.append_message(message, context, once=once)
            return Ok(encode(QueuedEntry(entry_id=entry_id)))
        case AppendCustom(custom_type=custom_type, data=data, request=request):
            await _check_appendable(lane, surroundings, context)
            once = surroundings.once(request)
            entry_id = await lane.tree.append_custom_entry(custom_type, data, context, once=once)
            return Ok(encode(QueuedEntry(entry_id=entry_id)))
        case RecordUsage(usage=usage, entry_id=entry_id, details=details, request=request):
            once = surroundings.once(request)
            recorded = await lane.record_usage(
                usage, context, entry_id=entry_id, details=details, once=once
            )
            if isinstance(recorded, Err):
                return Err(recorded.error)
            return Ok(encode(RecordedUsage(id=recorded.value)))
        case Inspect():
            return Ok(encode(await lane.inspect_execution(context)))
        case Drive():
            return _NOTHING
        case _:
            assert_never(command)


def _reply(result: Result[Any, TaggedError]) -> Reply:
    # Any: one of the result structs; it is encoded as it is.
    return Err(result.error) if isinstance(result, Err) else Ok(encode(result.value))


async def _accept(
    lane: AgentLane, command: Accept, surroundings: Surroundings, context: Context
) -> Reply:
    operation_id = command.request.operation_id
    if operation_id is not None:
        known = await _admitted(lane, operation_id, surroundings, context)
        if known is not None:
            return Ok(encode(known))
    admitted = await lane.accept(command.request, context)
    if isinstance(admitted, Err):
        busy = admitted.error
        if isinstance(busy, LaneBusy) and busy.operation_id == operation_id:
            # The same request came a second time while this one waited for its turn.
            known = await _admitted(lane, busy.operation_id, surroundings, context)
            if known is not None:
                return Ok(encode(known))
        return Err(busy)
    return Ok(encode(admitted.value))


async def _admitted(
    lane: AgentLane, operation_id: str, surroundings: Surroundings, context: Context
) -> OperationAdmission | None:
    execution = await lane.inspect_execution(context)
    current, last = execution.current, execution.last_result
    if current is not None and current.id == operation_id:
        return OperationAdmission(
            operation_id=current.id, kind=current.kind, started_at=current.started_at
        )
    if last is not None and last.operation_id == operation_id:
        return await surroundings.find_admission(operation_id)
    return None


async def _abort(lane: AgentLane, context: Context) -> Reply:
    current = (await lane.inspect_execution(context)).current
    if current is not None:
        requested = await lane.request_abort(current.id, context)
        if not (isinstance(requested, Err) and isinstance(requested.error, OperationMismatch)):
            return _reply(requested)
    return Err(NoActiveOperation(message=f"lane {lane.name} is idle", lane=lane.name))


async def _configure(
    lane: AgentLane, command: ConfigureLane, surroundings: Surroundings, context: Context
) -> Reply:
    if command.model is not None and not surroundings.find_model(command.model):
        provider, model_id = command.model.provider, command.model.model_id
        return Err(
            UnknownModel(
                message=f"no model {provider}/{model_id}", provider=provider, model_id=model_id
            )
        )
    if command.active_tools is not None:
        await lane.set_active_tools(command.active_tools, context)
    if command.model is not None:
        await lane.set_model(command.model, context)
    if command.thinking_level is not None:
        await lane.set_thinking_level(command.thinking_level, context)
    execution: LaneExecution = await lane.inspect_execution(context)
    return Ok(
        encode(
            LaneConfiguration(
                model=execution.configured_model,
                thinking_level=await lane.get_thinking_level(context),
                active_tool_names=await lane.get_active_tools(context),
            )
        )
    )


async def _check_appendable(lane: AgentLane, surroundings: Surroundings, context: Context) -> None:
    """While a compaction or navigation is open an append waits for its end: only where it can come."""
    if surroundings.drives:
        return
    current = (await lane.inspect_execution(context)).current
    if current is not None and current.kind != "run":
        raise NeedsDriver(current.id)
