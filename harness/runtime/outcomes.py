"""Builds the complete public outcome of an ended operation from the lane's last result (§3.13)."""

from __future__ import annotations

from typing import assert_never

from harness.context import Context
from harness.entries import BranchSummaryEntry, CompactionEntry
from harness.errors import StorageCorrupt
from harness.operation.lane_state import (
    CompactionLastResult,
    LaneLastResult,
    NavigationLastResult,
    RunLastResult,
)
from harness.operation.results import (
    CompactionOutcome,
    NavigationOutcome,
    OperationOutcome,
    RunOutcome,
)
from harness.runtime.lane import Lane
from harness.runtime.procedures.base import assistant_of


async def settled_outcome(
    lane: Lane, operation_id: str, context: Context
) -> OperationOutcome | None:
    """The outcome when `operation_id` is the lane's latest ended operation, else None."""
    result = lane.projection.last_result
    if result is None or result.operation_id != operation_id:
        return None
    return await hydrate(lane, result, context)


async def hydrate(lane: Lane, result: LaneLastResult, context: Context) -> OperationOutcome:
    """The complete outcome, with the entries that the result names."""
    match result:
        case RunLastResult():
            final = result.final_assistant_entry_id
            message = None
            if final is not None:
                entries = await lane.find_entries([final], context)
                message = assistant_of(entries.get(final), final)
            return RunOutcome(
                run_id=result.operation_id,
                kind=result.outcome,
                leaf_id=result.leaf_id,
                final_entry_id=final,
                final_message=message,
                error=result.error,
            )
        case CompactionLastResult():
            entry = None
            if result.outcome == "completed":
                entries = await lane.find_entries([result.leaf_id], context)
                entry = entries.get(result.leaf_id)
                if not isinstance(entry, CompactionEntry):
                    raise StorageCorrupt(f"entry {result.leaf_id} is not a compaction")
            return CompactionOutcome(
                run_id=result.operation_id,
                kind=result.outcome,
                leaf_id=result.leaf_id,
                entry=entry,
                error=result.error,
            )
        case NavigationLastResult():
            summary = None
            if result.summary_entry_id is not None:
                entries = await lane.find_entries([result.summary_entry_id], context)
                summary = entries.get(result.summary_entry_id)
                if not isinstance(summary, BranchSummaryEntry):
                    raise StorageCorrupt(f"entry {result.summary_entry_id} is not a summary")
            return NavigationOutcome(
                run_id=result.operation_id,
                kind=result.outcome,
                leaf_id=result.leaf_id,
                old_leaf_id=result.old_leaf_id,
                summary_entry=summary,
                error=result.error,
            )
        case _:
            assert_never(result)
