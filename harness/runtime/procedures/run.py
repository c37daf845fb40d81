"""The start of a run and its checkpoints: what happens between turns (§3.6, §3.12)."""

from __future__ import annotations

from harness.context import Context
from harness.entries import MessageEntry
from harness.errors import InvariantDefect
from harness.messages import AgentMessage, UserMessage
from harness.operation.state import (
    CheckpointPhase,
    FailureDrainPhase,
    MayFinish,
    NeedAssistant,
    RunIntent,
)
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import checkpoint as transitions
from harness.operation.transitions import terminal
from harness.operation.transitions.assistant import begin_generation
from harness.operation.transitions.checkpoint import QueueName
from harness.runtime.hooks import BeforeRun, BeforeRunEnd
from harness.runtime.lane import Commit, Decision, Decline
from harness.runtime.procedures.base import DrivePass, queue_contents, read_queue
from harness.runtime.procedures.threshold import consider_threshold
from harness.session.session import SessionMutator
from harness.settings import QueueMode, normalize_retry


async def start(p: DrivePass) -> None:
    """Run `before_run` and reach the first checkpoint (§3.6)."""
    injected: tuple[tuple[str, AgentMessage], ...] = ()
    if p.core.hooks.has("before_run"):
        intent = p.current().meta.intent
        if not isinstance(intent, RunIntent):
            raise InvariantDefect("a starting run has a run intent")
        entries = await p.lane.find_entries(intent.prompt_entry_ids, p.context)
        prompt = tuple(
            entry.message
            for entry_id in intent.prompt_entry_ids
            if isinstance(entry := entries.get(entry_id), MessageEntry)
        )
        event = BeforeRun(
            lane=p.lane.name,
            run_id=p.operation_id,
            prompt=prompt,
            resources=p.core.resources,
        )
        messages = await p.hook(lambda context: p.core.hooks.before_run(event, context))
        injected = tuple((p.new_id(), message) for message in messages)

    def decide(projection: LaneProjection) -> Step:
        return transitions.start_run(projection, injected)

    await p.step(decide)


async def checkpoint(p: DrivePass) -> None:
    """One pass through a checkpoint, in the normative order (§3.12)."""
    state = p.run()
    phase = state.phase
    if not isinstance(phase, CheckpointPhase):
        raise InvariantDefect("the run is not at a checkpoint")
    if not phase.skip_inbox_once:
        if await apply_writes(p):
            return
        if await drain(p, "steer", state.settings.steering_mode):
            return
    if await consider_threshold(p):
        return
    match phase.continuation:
        case NeedAssistant():
            await begin(p)
        case MayFinish():
            if await drain(p, "follow_up", state.settings.follow_up_mode):
                return
            await finish(p)


async def failure_drain(p: DrivePass) -> None:
    """Queued user input rescues a failing run; otherwise it fails (§3.12)."""
    state = p.run()
    if await apply_writes(p):
        return
    if await drain(p, "steer", state.settings.steering_mode):
        return
    if await drain(p, "follow_up", state.settings.follow_up_mode):
        return
    final = await p.final_assistant()

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        current = p.run()
        if not isinstance(current.phase, FailureDrainPhase) or _has_input(p):
            return Decline(None)
        owned = await p.owned_addresses(mutator, context)
        return Commit(terminal.fail_run(projection, owned, current.phase.error, final), None)

    await p.transition(plan)


async def apply_writes(p: DrivePass, *, cancelled_ok: bool = False) -> bool:
    """Place deferred tree writes; whether there were any."""
    return await drain(p, "writes", "all", cancelled_ok=cancelled_ok)


async def drain(
    p: DrivePass, queue: QueueName, mode: QueueMode, *, cancelled_ok: bool = False
) -> bool:
    """Place eligible items of one queue in acceptance order; whether there were any."""
    if not getattr(p.run().inbox, queue):
        return False

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[bool]:
        ids = getattr(p.run().inbox, queue)
        taken = ids if mode == "all" else ids[:1]
        if not taken:
            return Decline(False)
        items = await read_queue(mutator, taken, context)
        queues = await queue_contents(
            projection,
            mutator,
            context,
            wanted=p.core.events.listened and queue != "writes",
            without=frozenset(taken),
        )
        step = transitions.consume(
            projection,
            queue,
            items,
            projected_custom_types=p.core.projected_types,
            queues=queues,
        )
        return Commit(step, True)

    return await p.transition(plan, cancelled_ok=cancelled_ok)


async def begin(p: DrivePass) -> None:
    """Capture settings and configuration for one generation step (§3.7)."""
    step_id = p.new_id()
    # Settings line first, then the lane line: the order that setters rely on (§4.3).
    async with p.core.settings_line:
        options = p.core.stream_options
        policy = normalize_retry(p.core.retry)

        def decide(projection: LaneProjection) -> Step:
            return begin_generation(
                projection, step_id=step_id, stream_options=options, retry_policy=policy
            )

        await p.step(decide)


async def finish(p: DrivePass) -> None:
    """Ask `before_run_end`, then end the run unless input arrived meanwhile."""
    phase = p.run().phase
    if p.core.hooks.has("before_run_end"):
        messages = await p.lane.context.messages(
            p.core.session.storage, p.lane.projection.leaf_id, p.core.projectors, p.context
        )
        event = BeforeRunEnd(lane=p.lane.name, run_id=p.operation_id, messages=messages)
        text = await p.hook(lambda context: p.core.hooks.before_run_end(event, context))
        if text is not None:
            entry_id = p.new_id()
            message = UserMessage(content=text, timestamp=p.now())

            def follow_up(
                projection: LaneProjection, mutator: SessionMutator, context: Context
            ) -> Decision[None]:
                if p.run().phase != phase or _has_input(p):
                    return Decline(None)
                return Commit(transitions.run_end_follow_up(projection, entry_id, message), None)

            await p.transition(follow_up)
            return
    final = await p.final_assistant()

    async def end(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        state = p.run()
        if state.phase != phase or _has_input(p):
            return Decline(None)
        checkpoint_phase = transitions.checkpoint_of(state)
        if not isinstance(checkpoint_phase.continuation, MayFinish):
            raise InvariantDefect("a run that owes a turn cannot finish")
        owned = await p.owned_addresses(mutator, context)
        step = terminal.finish_run(
            projection,
            owned,
            include_final_assistant=checkpoint_phase.continuation.include_final_assistant,
            final=final,
        )
        return Commit(step, None)

    await p.transition(end)


def _has_input(p: DrivePass) -> bool:
    inbox = p.run().inbox
    return bool(inbox.steer or inbox.follow_up or inbox.writes)
