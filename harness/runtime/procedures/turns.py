"""Brackets of a turn: each is opened once per process and closed with what it produced (§5.5)."""

from __future__ import annotations

from harness.messages import AssistantMessage, ToolResultMessage
from harness.operation.events import TurnEnd, TurnStart
from harness.runtime.procedures.base import DrivePass


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
