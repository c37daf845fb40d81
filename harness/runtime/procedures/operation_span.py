"""The span of one pass over an operation, and how it says what the pass came to (§5.8)."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from harness.errors import OperationKind
from harness.operation.results import DriveOutcome, DriveSettled
from harness.operation.state import (
    Deciding,
    NavigationState,
    Operation,
    ReadyToCommit,
    RunState,
    StartingPhase,
)
from harness.operation.transitions.structural import structural_of
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.turns import end_turn_span
from harness.telemetry import Attributes, SpanName

_NAMES: dict[OperationKind, SpanName] = {
    "run": "pi.harness.run",
    "compaction": "pi.harness.compaction",
    "navigation": "pi.harness.navigation",
}


@contextmanager
def operation_span(p: DrivePass, operation: Operation) -> Generator[DrivePass]:
    """The pass inside its operation's span; a turn that is still open ends before it."""
    attributes: Attributes = {
        "pi.operation.kind": operation.kind,
        "pi.operation.recovery": _has_begun(operation),
    }
    with p.span(_NAMES[operation.kind], attributes) as inner:
        try:
            yield inner
        except BaseException as error:
            end_turn_span(p.drive, error=type(error).__name__)
            raise
        end_turn_span(p.drive)


def pass_ends(p: DrivePass, outcome: DriveOutcome) -> None:
    """Say what came of the pass: the operation's outcome, or that it waits; an error by its code."""
    if not isinstance(outcome, DriveSettled):
        p.conclude({"pi.operation.outcome": "suspended"})
        return
    settled = outcome.outcome
    error = None if settled.error is None else settled.error.code
    p.conclude({"pi.operation.outcome": settled.kind}, error=error)


def _has_begun(operation: Operation) -> bool:
    """Whether a pass before this one did anything for the operation."""
    state = operation.state
    if isinstance(state, RunState):
        return not isinstance(state.phase, StartingPhase)
    if isinstance(state, NavigationState) and isinstance(state.phase, ReadyToCommit):
        return False
    return not isinstance(structural_of(state), Deciding)
