"""What a lane remembers between operations: whose it is, what waits for the next run, how the last one ended (§3.3, §3.13)."""

from __future__ import annotations

from typing import Literal, TypeAlias

from harness.operation.durable import Durable, OperationError


class LaneState(Durable, frozen=True, kw_only=True):
    """Which operation owns the lane, and what waits for the next run."""

    current_operation_id: str | None
    pending_next_run: tuple[str, ...]


IDLE_LANE = LaneState(current_operation_id=None, pending_next_run=())

RunCompletion: TypeAlias = Literal["assistant", "terminated_tools"]
Outcome: TypeAlias = Literal["completed", "failed", "aborted", "declined"]


class RunLastResult(Durable, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """How a run ended; `run_completion` only when completed, `error` only when failed."""

    operation_id: str
    outcome: Literal["completed", "failed", "aborted"]
    leaf_id: str
    final_assistant_entry_id: str | None = None
    run_completion: RunCompletion | None = None
    error: OperationError | None = None


class CompactionLastResult(Durable, frozen=True, kw_only=True, tag_field="kind", tag="compaction"):
    """How a manual compaction ended."""

    operation_id: str
    outcome: Outcome
    leaf_id: str
    error: OperationError | None = None


class NavigationLastResult(Durable, frozen=True, kw_only=True, tag_field="kind", tag="navigation"):
    """How a navigation ended, where it started and where it arrived."""

    operation_id: str
    outcome: Outcome
    leaf_id: str | None
    old_leaf_id: str | None
    summary_entry_id: str | None = None
    error: OperationError | None = None


LaneLastResult: TypeAlias = RunLastResult | CompactionLastResult | NavigationLastResult
