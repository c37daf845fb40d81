"""The spans of steps and checkpoints, and what they end with (§5.8)."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal, TypeAlias, assert_never

from harness.operation.classify import (
    Cancelled,
    Classification,
    Failed,
    Finished,
    Overflow,
    Suspended,
    WantsTools,
)
from harness.operation.state import SummaryContext
from harness.runtime.procedures.base import DrivePass
from harness.telemetry import AttributeName, AttributeValue

CheckpointKind: TypeAlias = Literal["normal", "compaction", "failure_drain", "abort_reconcile"]
StepOutcome: TypeAlias = Literal["succeeded", "retry", "failed", "aborted", "deferred", "overflow"]


def checkpoint_span(p: DrivePass, kind: CheckpointKind) -> AbstractContextManager[DrivePass]:
    """The pass inside a checkpoint of its run."""
    return p.span("pi.harness.checkpoint", {"pi.checkpoint.kind": kind})


def response_step(
    p: DrivePass,
    kind: Literal["assistant", "deferred"],
    step_id: str,
    attempt: int,
    *,
    recovery: bool = False,
) -> AbstractContextManager[DrivePass]:
    """The pass inside one attempt at a response; `attempt` is the poll's number for a deferred one."""
    return p.span(
        "pi.harness.step",
        {
            "pi.step.kind": kind,
            "pi.step.id": step_id,
            "pi.step.attempt": attempt,
            "pi.step.recovery": recovery,
        },
    )


def summary_step(
    p: DrivePass, context: SummaryContext, attempt: int, *, recovery: bool = False
) -> AbstractContextManager[DrivePass]:
    """The pass inside one attempt at a summary."""
    attributes: dict[AttributeName, AttributeValue] = {
        "pi.step.kind": context.kind,
        "pi.task.id": context.task_id,
        "pi.step.attempt": attempt,
        "pi.step.recovery": recovery,
    }
    if context.reason is not None:
        attributes["pi.compaction.reason"] = context.reason
    return p.span("pi.harness.step", attributes)


def step_ends(p: DrivePass, outcome: StepOutcome, error: str | None = None) -> None:
    """Say how the step's attempt came out; `error` is a code."""
    p.conclude({"pi.step.outcome": outcome}, error=error)


def response_ends(p: DrivePass, classified: Classification, *, retrying: bool) -> None:
    """Say how the step's attempt came out, from what the response was taken for."""
    match classified:
        case Finished() | WantsTools():
            step_ends(p, "succeeded")
        case Suspended():
            step_ends(p, "deferred")
        case Cancelled():
            step_ends(p, "aborted")
        case Overflow():
            step_ends(p, "overflow", "overflow")
        case Failed(message=message):
            code = message.error_kind or message.stop_reason
            step_ends(p, "retry" if retrying else "failed", code)
        case _:
            assert_never(classified)
