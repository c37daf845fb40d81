"""Ends an operation that leads nowhere, so that it stops killing one host after the other (design §6)."""

from __future__ import annotations

import logging

from harness.context import BACKGROUND
from harness.operation.state import OperationError
from harness.result import Err
from harness.runtime.agent_lane import AgentLane
from harness.runtime.finalize import finalize_externally

logger = logging.getLogger(__name__)

# Passes in a row without any progress of the operation's state; the next one does not begin.
MOST_PASSES = 5
_UNKNOWN = "its host died each time, or was stopped"


async def end_as_crash_loop(
    lane: AgentLane, operation_id: str, passes: int, reason: str | None
) -> None:
    """Fail the operation with code `crash_loop`; the lane is free again."""
    led = reason or _UNKNOWN
    error = OperationError(
        code="crash_loop",
        message=f"{passes} passes in a row ended without progress; the last one: {led}",
        details={"passes": passes, "reason": led},
    )
    # The harness shows its lanes to this package only: an administrator's act (§4.9).
    owner = lane._lane  # pyright: ignore[reportPrivateUsage]
    ended = await finalize_externally(owner, operation_id, error, BACKGROUND)
    if isinstance(ended, Err):
        logger.info("operation %s was over before it was given up", operation_id)
        return
    logger.error("gave up operation %s after %d passes without progress", operation_id, passes)
