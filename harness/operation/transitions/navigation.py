"""The one transaction that completes a navigation (§3.10)."""

from __future__ import annotations

from collections.abc import Iterable

from harness.entries import BranchSummaryPayload
from harness.errors import InvariantDefect
from harness.operation import values
from harness.operation.events import ValueUpdate
from harness.operation.lane_state import NavigationLastResult
from harness.operation.state import NavigationState
from harness.operation.step import Draft, LaneProjection, Step
from harness.operation.transitions.terminal import end_operation
from harness.storage.address import AnyValue
from harness.usage import NewUsageRow


def commit_navigation(
    projection: LaneProjection,
    *,
    owned: Iterable[AnyValue],
    summary: tuple[str, BranchSummaryPayload] | None,
    hook_usage: NewUsageRow | None,
) -> tuple[Step, int | None]:
    """Move the leaf, place the summary below the target, label it, and end the operation.

    Returns the step and the index of the summary's entry write; the caller reports
    `navigation_end`, which carries the stamped summary.
    """
    operation = projection.operation
    if operation is None or not isinstance(operation.state, NavigationState):
        raise InvariantDefect("no navigation is open")
    state = operation.state
    draft = Draft(projection)
    index: int | None = None
    if hook_usage is not None:
        draft.usage(hook_usage)
    draft.move_leaf(state.target_id)
    summary_id: str | None = None
    if summary is not None:
        summary_id, payload = summary
        index = (0 if hook_usage is None else 1) + 1
        draft.entry(summary_id, payload)
        draft.leaf_write()
    if state.label is not None:
        if state.target_id is None:
            raise InvariantDefect("the root cannot carry a label")
        draft.set(values.entry_label(state.target_id), state.label)
        draft.event(ValueUpdate(value="entry_label", target_id=state.target_id, label=state.label))
    step = end_operation(
        draft,
        NavigationLastResult(
            operation_id=operation.id,
            outcome="completed",
            leaf_id=draft.leaf,
            old_leaf_id=operation.meta.source_leaf_id,
            summary_entry_id=summary_id,
        ),
        owned,
        None,
    )
    return step, index
