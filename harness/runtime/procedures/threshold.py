"""When a context is too large: the preparation of an in-run compaction and its threshold (§3.9, §3.12)."""

from __future__ import annotations

from harness.codec import encode_str
from harness.compaction.prepare import Limits, prepare_compaction, restated_messages
from harness.compaction.tokens import context_tokens, exceeds_threshold, fitted, text_tokens
from harness.messages import AssistantMessage
from harness.operation.payloads import CompactionPreparation
from harness.operation.provider_errors import refused_tokens
from harness.operation.state import CheckpointPhase
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import checkpoint as checkpoints
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.requests import active_definitions, context_messages
from harness.runtime.procedures.structural import announce


async def prepare_now(p: DrivePass, limits: Limits) -> CompactionPreparation | None:
    """A preparation of the lane's current context under the run's captured settings."""
    settings = p.run().settings.compaction
    entries = await p.lane.context_entries(p.context)
    return prepare_compaction(entries, await context_messages(p), settings, limits)


async def prepare_overflow(
    p: DrivePass, context_window: int, message: AssistantMessage
) -> CompactionPreparation | None:
    """The preparation for a request that did not fit; compaction may be switched off."""
    if not p.run().settings.compaction.enabled:
        return None
    asked = message.usage.input + message.usage.cache_read + message.usage.cache_write
    counted = refused_tokens(message.error_message or "", context_window) or asked
    refused = max(counted, context_window)
    return await prepare_now(p, Limits(context_window, prompt_tokens(p), refused))


def prompt_tokens(p: DrivePass) -> int:
    """An estimate of what a request holds besides the messages: system prompt and tools.

    A prompt that the application computes for each request is not computed for an estimate.
    """
    source = p.core.system_prompt
    prompt = text_tokens(source) if isinstance(source, str) else 0
    return prompt + sum(
        text_tokens(tool.name)
        + text_tokens(tool.description)
        + text_tokens(encode_str(tool.parameters))
        for tool in active_definitions(p, p.lane.projection.config)
    )


async def consider_threshold(p: DrivePass) -> bool:
    """Start a threshold compaction when the context is too large; whether anything was committed."""
    state = p.run()
    phase = state.phase
    if not isinstance(phase, CheckpointPhase) or not state.settings.compaction.enabled:
        return False
    if phase.threshold_checked_trigger_entry_id == phase.trigger_entry_id:
        return False
    model = p.core.models.resolve(p.lane.projection.config.model)
    if model is None:
        return False
    window = model.context_window
    restated = restated_messages(await p.lane.context_entries(p.context))
    tokens = context_tokens(
        await context_messages(p), restated=restated, overhead=lambda: prompt_tokens(p)
    )
    reserve = fitted(state.settings.compaction, window).reserve_tokens
    if not exceeds_threshold(tokens, window, reserve):
        return False
    preparation = await prepare_now(p, Limits(window, prompt_tokens(p)))
    if preparation is None:
        await p.step(checkpoints.mark_threshold_checked)
        return True
    task_id = p.new_id()

    def enter(projection: LaneProjection) -> Step:
        return checkpoints.begin_threshold_compaction(projection, task_id, preparation)

    await p.step(enter)
    await announce(p)
    return True
