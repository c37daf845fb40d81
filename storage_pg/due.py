"""When somebody must look at an open operation next, read off its state (design §6).

The answer is kept as a class as well, because a commit touches the scheduler's row only when the
class changes: an operation that is due stays due through all its transitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, assert_never

from harness.operation.state import (
    AssistantPhase,
    CancelRequested,
    CheckpointPhase,
    CompactionPhase,
    CompactionState,
    Deciding,
    DeferredPhase,
    DeferredSuspended,
    FailureDrainPhase,
    Generating,
    GenerationRetryWait,
    NavigationState,
    OperationState,
    ReadyToCommit,
    RunPhase,
    RunState,
    StartingPhase,
    StructuralDecision,
    SummaryPhase,
    SummaryRetryWait,
    ToolsPhase,
)


@dataclass(frozen=True, slots=True)
class DueNow:
    """A drive can go on at once."""


@dataclass(frozen=True, slots=True)
class DueAt:
    """The next attempt is allowed at this instant (Unix ms)."""

    instant: int


@dataclass(frozen=True, slots=True)
class DuePoll:
    """The provider works in the background; this many polls are done."""

    poll: int


Due: TypeAlias = DueNow | DueAt | DuePoll

DUE_NOW = DueNow()


@dataclass(frozen=True, slots=True)
class PollSettings:
    """How long to wait before a poll (milliseconds): doubled with each poll, up to `longest`."""

    first: int = 5_000
    longest: int = 300_000

    def delay(self, poll: int) -> int:
        """The wait before poll number `poll` (from 0)."""
        return min(self.first << min(poll, 32), self.longest)


def due_of(state: OperationState) -> Due:
    """The class of a state."""
    if isinstance(state.control, CancelRequested):
        return DUE_NOW
    match state:
        case RunState(phase=phase):
            return _of_phase(phase)
        case CompactionState(structural=structural):
            return _of_structural(structural)
        case NavigationState(phase=ReadyToCommit()):
            return DUE_NOW
        case NavigationState(phase=SummaryPhase(structural=structural)):
            return _of_structural(structural)
        case NavigationState():
            return DUE_NOW
        case _:
            assert_never(state)


def due_instant(due: Due, now_ms: int, polls: PollSettings) -> int:
    """The instant of a class, for a commit made at `now_ms`."""
    match due:
        case DueNow():
            return now_ms
        case DueAt(instant=instant):
            return instant
        case DuePoll(poll=poll):
            return now_ms + polls.delay(poll)
        case _:
            assert_never(due)


def _of_phase(phase: RunPhase) -> Due:
    match phase:
        case AssistantPhase(generation=GenerationRetryWait(not_before=instant)):
            return DueAt(instant)
        case CompactionPhase(structural=structural):
            return _of_structural(structural)
        case DeferredPhase(deferred=DeferredSuspended(poll=poll)):
            return DuePoll(poll)
        case (
            StartingPhase()
            | CheckpointPhase()
            | AssistantPhase()
            | ToolsPhase()
            | DeferredPhase()
            | FailureDrainPhase()
        ):
            return DUE_NOW
        case _:
            assert_never(phase)


def _of_structural(structural: StructuralDecision) -> Due:
    match structural:
        case Generating(generation=SummaryRetryWait(not_before=instant)):
            return DueAt(instant)
        case Deciding() | Generating():
            return DUE_NOW
        case _:
            assert_never(structural)
