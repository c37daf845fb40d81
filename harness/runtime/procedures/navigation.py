"""Navigation: one transaction moves the leaf, with or without a summary (§3.10)."""

from __future__ import annotations

from collections.abc import Sequence

from harness.context import Context
from harness.entries import BranchSummaryEntry, BranchSummaryPayload, place
from harness.operation.events import HarnessEvent, NavigationEnd
from harness.operation.step import LaneProjection
from harness.operation.transitions.navigation import commit_navigation
from harness.runtime.lane import Commit, Decision
from harness.runtime.procedures.base import DrivePass
from harness.session.session import SessionMutator
from harness.storage.protocol import CommitResult
from harness.usage import NewUsageRow


async def publish_navigation(
    p: DrivePass, summary: tuple[str, BranchSummaryPayload] | None, *, charge_hook: bool
) -> None:
    """Complete the navigation; a summary that a hook supplied is charged to the ledger."""
    operation = p.current()
    charge = summary[1].usage if summary is not None and charge_hook else None
    usage_id = p.new_id()

    async def plan(
        projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[None]:
        owned = await p.owned_addresses(mutator, context)
        step, index = commit_navigation(
            projection,
            owned=owned,
            summary=summary,
            hook_usage=None
            if charge is None or summary is None
            else NewUsageRow(id=usage_id, usage=charge, entry_id=summary[0]),
        )

        def end(result: CommitResult) -> Sequence[HarnessEvent]:
            entry: BranchSummaryEntry | None = None
            if index is not None and summary is not None:
                placed = place(
                    summary[1],
                    id=summary[0],
                    parent_id=_target(projection),
                    seq=result.seqs[index],
                    timestamp=result.timestamp,
                )
                assert isinstance(placed, BranchSummaryEntry)
                entry = placed
            return (
                NavigationEnd(
                    lane=projection.lane,
                    run_id=operation.id,
                    old_leaf_id=operation.meta.source_leaf_id,
                    new_leaf_id=step.projection.leaf_id,
                    outcome="completed",
                    summary_entry=entry,
                ),
            )

        return Commit(step, None, end)

    await p.transition(plan)


def _target(projection: LaneProjection) -> str | None:
    operation = projection.operation
    intent = None if operation is None else operation.meta.intent
    return getattr(intent, "target_id", None)
