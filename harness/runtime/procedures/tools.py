"""A tool batch: clear in source order, run, stage in completion order, place in source order (§3.8)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

from harness.codec import JsonValue
from harness.context import Context
from harness.entries import MessageEntry
from harness.errors import InvariantDefect, StorageCorrupt
from harness.execution import tools as phases
from harness.messages import (
    AgentToolResult,
    AssistantMessage,
    ToolCall,
    ToolResultMessage,
)
from harness.operation import values
from harness.operation.events import ToolEnd, ToolStart
from harness.operation.results import RunningTool
from harness.operation.state import (
    CallOutcomeReady,
    CallPending,
    CallPlanned,
    ToolBatch,
    ToolsPhase,
)
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import tools as transitions
from harness.runtime.gate import AbortRequested
from harness.runtime.hooks import AfterTool, BeforeTool, Block, ToolPatch
from harness.runtime.lane import Auxiliary, Commit, Decision, Decline
from harness.runtime.procedures.base import DrivePass, read_pending, source_call, tool_result_of
from harness.runtime.procedures.invocation import Invocation, ToolSpan, UpdateChannel
from harness.runtime.procedures.requests import active_tools, context_messages, tool_context_of
from harness.runtime.procedures.turns import close_turn, open_turn
from harness.session.session import SessionMutator
from harness.settings import ReplayPolicy
from harness.storage.writes import delete_value
from harness.tools.protocol import AgentTool

TRUNCATED = (
    "Not run: the response reached its output limit, so the arguments of this call may be damaged."
)
CANCELLED = "Not run: the run was cancelled before this tool started."


@dataclass(slots=True)
class Batch:
    """What one process knows while it works on a batch."""

    assistant: AssistantMessage
    tools: dict[str, AgentTool[Any]]  # Any: the application's tool context is opaque
    tool_context: object
    turn_id: str
    truncated: bool
    restored: bool


# A call to run again, and what it was cleared as.
Replay: TypeAlias = tuple[CallPending, phases.PreparedCall]


async def run_batch(p: DrivePass, *, restored: bool) -> None:
    """Bring the batch to its end. `restored`: effects may be pending that this process never owned."""
    state = transitions.batch_of(p.run())
    batch = await _open(p, state, restored=restored)
    replays = await _recover(p, batch, state) if restored else []
    await place_ready(p, batch)
    if _finished(p):
        await _close(p, batch, state)
        return
    if p.run().settings.tool_execution == "sequential" and not batch.truncated:
        for call, prepared in replays:
            await _replay(p, batch, call, prepared)
        for call in _planned(p):
            running = await _start(p, batch, call)
            if running is not None:
                await running
    else:
        await _run_parallel(p, batch, replays)
    await place_ready(p, batch)
    await _close(p, batch, state)


async def _open(p: DrivePass, state: ToolBatch, *, restored: bool) -> Batch:
    assistant = await p.assistant(state.assistant_entry_id)
    await open_turn(p, state.turn_id, recovery=restored)
    await context_messages(p)  # projects what is new, which may make tools active
    return Batch(
        assistant=assistant,
        tools=active_tools(p, state.configuration),
        tool_context=await tool_context_of(p),
        turn_id=state.turn_id,
        truncated=assistant.stop_reason == "length",
        restored=restored,
    )


def _planned(p: DrivePass) -> list[CallPlanned]:
    batch = transitions.batch_of(p.run())
    return [call for call in batch.calls if isinstance(call, CallPlanned)]


def _finished(p: DrivePass) -> bool:
    return p.ended() or not isinstance(p.run().phase, ToolsPhase)


async def _run_parallel(p: DrivePass, batch: Batch, replays: list[Replay]) -> None:
    # Replays run beside the calls that are still to be cleared, as the calls did the first time.
    running = [asyncio.create_task(_replay(p, batch, call, prepared)) for call, prepared in replays]
    try:
        for call in _planned(p):
            task = await _start(p, batch, call)
            if task is not None:
                running.append(task)
    except AbortRequested:
        # Calls that started keep their results; they settle before reconciliation goes on.
        await _all(running)
        raise
    except BaseException:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        raise
    await _all(running)


async def _all(running: list[asyncio.Task[None]]) -> None:
    results = await asyncio.gather(*running, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if not isinstance(failure, AbortRequested):
            raise failure
    if failures:
        raise failures[0]


async def _start(p: DrivePass, batch: Batch, call: CallPlanned) -> asyncio.Task[None] | None:
    """Clear one planned call. Returns its running execution, or None when it was refused."""
    source = source_call(batch.assistant, call.source_index)
    if batch.truncated:
        await _stage_refusal(p, batch, call.source_index, phases.RefusedCall(source, TRUNCATED))
        return None
    prepared = phases.prepare_call(source, batch.tools)
    if isinstance(prepared, phases.PreparedCall):
        prepared = await _before_tool(p, prepared)
    if isinstance(prepared, phases.RefusedCall):
        await _stage_refusal(p, batch, call.source_index, prepared)
        return None
    cleared = prepared
    replay: ReplayPolicy = cleared.tool.replay

    def intend(projection: LaneProjection) -> Step:
        return transitions.intend_call(projection, call.source_index, cleared.arguments, replay)

    await p.step(intend)
    return asyncio.create_task(
        perform(p, batch, call.source_index, call.result_entry_id, cleared, recovery=False)
    )


async def _before_tool(
    p: DrivePass, prepared: phases.PreparedCall
) -> phases.PreparedCall | phases.RefusedCall:
    if not p.core.hooks.has("before_tool"):
        return prepared
    event = BeforeTool(
        lane=p.lane.name,
        run_id=p.operation_id,
        tool_call_id=prepared.call.id,
        tool_name=prepared.call.name,
        args=prepared.arguments,
    )
    decision = await p.hook(
        lambda context: p.core.hooks.before_tool(event, context, phases.storable_arguments),
    )
    if isinstance(decision, Block):
        return phases.RefusedCall(prepared.call, decision.reason, terminate=decision.terminate)
    try:
        phases.validate_arguments(prepared.tool, decision)
    except Exception as error:  # noqa: BLE001 -- replacement arguments come from application code
        return phases.RefusedCall(
            prepared.call, f'Invalid arguments for "{prepared.call.name}": {error}'
        )
    return phases.PreparedCall(prepared.call, prepared.tool, decision)


async def _stage_refusal(
    p: DrivePass, batch: Batch, source_index: int, refused: phases.RefusedCall
) -> None:
    message = phases.synthetic_message(refused.call, refused.text, p.now())
    await stage(p, source_index, message, terminate=refused.terminate)
    await place_ready(p, batch)


async def perform(
    p: DrivePass,
    batch: Batch,
    source_index: int,
    result_entry_id: str,
    call: phases.PreparedCall,
    *,
    recovery: bool,
) -> None:
    """Run one intended call to its staged outcome, then place what is ready."""
    span = ToolSpan(
        p,
        call.tool.name,
        batch.turn_id,
        result_entry_id,
        call.tool.replay,
        recovery=recovery,
    )
    inside = span.inside
    updates = UpdateChannel(inside, call, batch.turn_id, result_entry_id, source_index, recovery)
    invocation = Invocation(inside, result_entry_id, batch.turn_id, source_index)

    def start() -> asyncio.Task[AgentToolResult]:
        # Admission and invocation stand in one expression (§4.2).
        task = p.gate.admit(
            lambda: asyncio.ensure_future(
                call.tool.execute(
                    call.call.id,
                    # Its own: it may change them, and what was decided on stays what it was.
                    phases.storable_arguments(call.arguments),
                    updates,
                    batch.tool_context,
                    invocation,
                    span.start(),
                )
            )
        )
        p.lane.live.running[result_entry_id] = RunningTool(
            tool_call_id=call.call.id, tool_name=call.call.name, args=call.arguments
        )
        updates.started(
            p.core.events.emit_batch(
                (
                    ToolStart(
                        lane=p.lane.name,
                        run_id=p.operation_id,
                        turn_id=batch.turn_id,
                        tool_call_id=call.call.id,
                        tool_name=call.call.name,
                        args=call.arguments,
                        recovery=recovery,
                    ),
                ),
                p.context,
            )
        )
        return task

    try:
        executed = await phases.execute_call(start)
        span.end(is_error=executed.is_error)
    except AbortRequested as abort:
        # The intent is durable but the tool never started: that is known, so it is said.
        await abort.cancellation
        refused = phases.RefusedCall(call.call, CANCELLED)
        await _stage_refusal(p, batch, source_index, refused)
        return
    finally:
        span.end(is_error=True)
        invocation.expire()
        updates.close()
        p.lane.live.running.pop(result_entry_id, None)
    await updates.drained()
    patch = await _after_tool(p, call, executed)
    final = phases.finalize_call(
        call.call,
        executed,
        content=patch.content,
        details=patch.details,
        is_error=patch.is_error,
        usage=patch.usage,
        terminate=patch.terminate,
    )
    if p.current().cancelling:
        final = phases.without_termination(final)
    await p.emit(
        ToolEnd(
            lane=p.lane.name,
            run_id=p.operation_id,
            turn_id=batch.turn_id,
            tool_call_id=call.call.id,
            tool_name=call.call.name,
            result=final.result,
            is_error=final.is_error,
            terminate=final.terminate,
            recovery=recovery,
        )
    )
    message = phases.result_message(final, p.now())
    await stage(p, source_index, message, terminate=final.terminate)
    await place_ready(p, batch)


async def _after_tool(
    p: DrivePass, call: phases.PreparedCall, executed: phases.ExecutedCall
) -> ToolPatch:
    if not p.core.hooks.has("after_tool"):
        return ToolPatch()
    event = AfterTool(
        lane=p.lane.name,
        run_id=p.operation_id,
        tool_call_id=call.call.id,
        tool_name=call.call.name,
        args=call.arguments,
        content=executed.result.content,
        details=executed.result.details,
        is_error=executed.is_error,
        usage=executed.result.usage,
    )
    try:
        return await p.hook(lambda context: p.core.hooks.after_tool(event, context))
    except AbortRequested as abort:
        await abort.cancellation
        return ToolPatch()


async def stage(
    p: DrivePass, source_index: int, message: ToolResultMessage, *, terminate: bool
) -> None:
    """Make an outcome durable; from here on the call never runs again."""

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        call = transitions.call_at(transitions.batch_of(p.run()), source_index)
        memos = (
            await mutator.scan_values(
                values.operation_tool_memo_prefix(p.operation_id, call.result_entry_id), context
            )
            if isinstance(call, CallPending)
            else []
        )
        step = transitions.stage_outcome(
            projection,
            source_index,
            message,
            terminate=terminate and not p.current().cancelling,
            memos=[memo.address for memo in memos],
        )
        p.lane.staged[call.result_entry_id] = message
        return Commit(step, None)

    await p.transition(plan, cancelled_ok=True)


async def place_ready(p: DrivePass, batch: Batch | None, *, recovery: bool = False) -> None:
    """Place the contiguous staged results in source order (§3.8)."""

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        state = p.run()
        if not isinstance(state.phase, ToolsPhase):
            return Decline(None)
        ready = transitions.ready_prefix(state.phase.batch)
        if not ready:
            return Decline(None)
        results: list[tuple[CallOutcomeReady, ToolResultMessage]] = []
        for call in ready:
            message = p.lane.staged.get(call.result_entry_id)
            if message is None:
                pending = await read_pending(mutator, call.result_entry_id, context)
                message = tool_result_of(pending, call.result_entry_id)
            results.append((call, message))
        arguments = await mutator.scan_values(
            values.operation_tool_args_prefix(p.operation_id, state.phase.batch.turn_id), context
        )
        step = transitions.materialize(
            projection,
            tuple(results),
            usage_ids=[p.new_id() for _ in results],
            batch_arguments=[argument.address for argument in arguments],
            recovery=recovery,
        )
        for call in ready:
            p.lane.staged.pop(call.result_entry_id, None)
        return Commit(step, None)

    await p.transition(plan, cancelled_ok=True)


async def _recover(p: DrivePass, batch: Batch, state: ToolBatch) -> list[Replay]:
    """Interrupt the calls whose process died; returns those to replay, in source order (§4.5)."""
    replays: list[Replay] = []
    for call in state.calls:
        if not isinstance(call, CallPending):
            continue
        source = source_call(batch.assistant, call.source_index)
        tool = p.core.tools.get(source.name)
        if call.replay == "safe" and tool is not None and tool.replay == "safe":
            replays.append((call, await _stored_call(p, batch, call, source, tool)))
        else:
            await interrupt(p, call, source)
    return replays


async def _replay(
    p: DrivePass, batch: Batch, call: CallPending, prepared: phases.PreparedCall
) -> None:
    await drop_checkpoint(p, call)
    await perform(p, batch, call.source_index, call.result_entry_id, prepared, recovery=True)


async def _stored_call(
    p: DrivePass, batch: Batch, call: CallPending, source: ToolCall, tool: AgentTool[Any]
) -> phases.PreparedCall:
    stored = await p.core.session.storage.get_value(
        values.operation_tool_args(p.operation_id, batch.turn_id, call.source_index), p.context
    )
    if stored is None:
        missing = StorageCorrupt(f"the arguments of call {call.result_entry_id} are missing")
        raise p.core.fault(missing, p.context, p.lane.name)
    arguments: dict[str, JsonValue] = stored.value
    return phases.PreparedCall(source, tool, arguments)


async def drop_checkpoint(p: DrivePass, call: CallPending) -> None:
    """Delete the old progress before a safe replay writes its own."""
    address = values.pending_tool_output(p.operation_id, call.result_entry_id)

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        if await mutator.get_value(address, context) is None:
            return Decline(None)
        return Auxiliary((delete_value(address),), None)

    await p.transition(plan)


async def interrupt(p: DrivePass, call: CallPending, source: ToolCall) -> None:
    """Say that the outcome of a call is unknown, with its latest saved progress (§4.5)."""
    checkpoint = await p.core.session.storage.get_value(
        values.pending_tool_output(p.operation_id, call.result_entry_id), p.context
    )
    message = phases.interrupted_message(
        source, None if checkpoint is None else checkpoint.value, p.now()
    )
    await stage(p, call.source_index, message, terminate=False)


async def _close(p: DrivePass, batch: Batch, state: ToolBatch) -> None:
    if not _finished(p):
        raise InvariantDefect("a tool batch ended with calls left over")
    await report_batch(p, batch.assistant, state, recovery=batch.restored)


async def report_batch(
    p: DrivePass, assistant: AssistantMessage, state: ToolBatch, *, recovery: bool
) -> None:
    """Close the turn of a batch with its results in source order."""
    if not p.core.events.listened:
        p.lane.open_turn = None
        return
    ids = [call.result_entry_id for call in state.calls]
    entries = await p.lane.find_entries(ids, p.context)
    results = tuple(
        entry.message
        for entry_id in ids
        if isinstance(entry := entries.get(entry_id), MessageEntry)
        and isinstance(entry.message, ToolResultMessage)
    )
    await close_turn(p, assistant, results, recovery=recovery)


def has_pending(batch: ToolBatch) -> bool:
    """Whether any call's effect is unsettled."""
    return any(isinstance(call, CallPending) for call in batch.calls)
