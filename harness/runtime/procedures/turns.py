"""Brackets of a turn: each is opened once per process and closed with what it produced (§5.5)."""

from __future__ import annotations

from harness.messages import AssistantMessage, ToolResultMessage
from harness.operation.classify import Classification, Suspended
from harness.operation.events import RunSuspend, TurnEnd, TurnStart
from harness.runtime.drive import Drive
from harness.runtime.procedures.base import DrivePass
from harness.telemetry import NOOP_TELEMETRY


def turn_span(p: DrivePass, turn_id: str) -> DrivePass:
    """The pass inside the span of this turn, which stays open until the turn or the pass ends."""
    if p.context.telemetry is NOOP_TELEMETRY:
        return p
    open_span = p.drive.turn_span
    if open_span is None or open_span[0] != turn_id:
        end_turn_span(p.drive)
        span = p.context.telemetry.start("pi.harness.turn", {**p.identity, "pi.turn.id": turn_id})
        open_span = p.drive.turn_span = (turn_id, span)
    return p.below(open_span[1].context)


def end_turn_span(drive: Drive, *, error: str | None = None) -> None:
    """End the span of the open turn, if there is one; `error` is a class."""
    if drive.turn_span is not None:
        drive.turn_span[1].end(error=error)
        drive.turn_span = None


async def open_turn(p: DrivePass, turn_id: str, *, recovery: bool = False) -> None:
    """Report the start of a turn once; `recovery` where this process did not see it begin."""
    if p.lane.open_turn == turn_id:
        return
    p.lane.open_turn = turn_id
    await p.emit(
        TurnStart(lane=p.lane.name, run_id=p.operation_id, turn_id=turn_id, recovery=recovery)
    )


async def close_turn(
    p: DrivePass,
    message: AssistantMessage | None = None,
    results: tuple[ToolResultMessage, ...] = (),
    *,
    recovery: bool = False,
) -> None:
    """Report the end of the open turn; without a message, the newest settled one stands for it."""
    end_turn_span(p.drive)
    turn_id = p.lane.open_turn
    if turn_id is None:
        return
    if message is None:
        message = await p.final_assistant()
    p.lane.open_turn = None
    if message is None:
        return
    await p.emit(
        TurnEnd(
            lane=p.lane.name,
            run_id=p.operation_id,
            turn_id=turn_id,
            message=message,
            tool_results=results,
            recovery=recovery,
        )
    )


async def close_settled(p: DrivePass, outcome: Classification) -> None:
    """Close the turn of a response that planned no tools, and report a suspension after it (§5.5)."""
    await close_turn(p, outcome.message)
    if isinstance(outcome, Suspended):
        await p.emit(
            RunSuspend(
                lane=p.lane.name,
                run_id=p.operation_id,
                reason="deferred",
                deferred=outcome.handle,
            )
        )
