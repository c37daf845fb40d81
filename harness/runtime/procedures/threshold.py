"""When a context is too large: the preparation of an in-run compaction and its threshold (§3.9, §3.12)."""

from __future__ import annotations

from harness.compaction.prepare import prepare_compaction
from harness.compaction.tokens import context_tokens, exceeds_threshold
from harness.operation.state import (
    CheckpointPhase,
    CompactionPreparation,
)
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import checkpoint as checkpoints
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.structural import announce


async def prepare_now(p: DrivePass) -> CompactionPreparation | None:
    """A preparation of the lane's current context under the run's captured settings."""
    settings = p.run().settings.compaction
    entries = await p.lane.context_entries(p.context)
    messages = await p.deterministic(
        lambda: p.lane.context.messages(
            p.core.session.storage, p.lane.projection.leaf_id, p.core.projectors, p.context
        )
    )
    return prepare_compaction(entries, messages, settings)


async def prepare_overflow(p: DrivePass) -> CompactionPreparation | None:
    """The preparation for a request that did not fit; compaction may be switched off."""
    return await prepare_now(p) if p.run().settings.compaction.enabled else None


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
    messages = await p.deterministic(
        lambda: p.lane.context.messages(
            p.core.session.storage, p.lane.projection.leaf_id, p.core.projectors, p.context
        )
    )
    tokens = context_tokens(messages)
    if not exceeds_threshold(
        tokens, model.context_window, state.settings.compaction.reserve_tokens
    ):
        return False
    preparation = await prepare_now(p)
    if preparation is None:
        await p.step(checkpoints.mark_threshold_checked)
        return True
    task_id = p.new_id()

    def enter(projection: LaneProjection) -> Step:
        return checkpoints.begin_threshold_compaction(projection, task_id, preparation)

    await p.step(enter)
    await announce(p)
    return True
