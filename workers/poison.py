"""Which passes count against their operation, and the end of one that leads nowhere, before it kills one host after the other (design §6)."""

from __future__ import annotations

import logging

from harness.context import BACKGROUND
from harness.errors import (
    HarnessClosed,
    HarnessFault,
    SessionNotFound,
    StorageCorrupt,
    StorageError,
)
from harness.operation.durable import OperationError
from harness.result import Err
from harness.runtime.agent_lane import AgentLane
from harness.runtime.finalize import finalize_externally

logger = logging.getLogger(__name__)

# Passes in a row without any progress of the operation's state; the next one does not begin.
MOST_PASSES = 5
_UNKNOWN = "its host died each time, or was stopped"


def is_excused(error: BaseException, lane: str | None = None) -> bool:
    """Whether what stopped a pass on `lane`, or kept it from beginning, is no fault of its operation:
    a drain, the database away, the lease lost, a session that a newer version wrote, or another
    lane's fault. A broken invariant, damaged data and whatever an application raises are."""
    if isinstance(error, HarnessFault):
        if error.lane is not None and lane is not None and error.lane != lane:
            return True
        return error.cause is not None and is_excused(error.cause)
    if isinstance(error, HarnessClosed | SessionNotFound):
        return True
    return isinstance(error, StorageError) and not isinstance(error, StorageCorrupt)


def crash_loop(passes: int, reason: str | None) -> OperationError:
    """The error of an operation that is given up; `reason` is why its last pass failed."""
    led = reason or _UNKNOWN
    return OperationError(
        code="crash_loop",
        message=f"{passes} passes in a row ended without progress; the last one: {led}",
        details={"passes": passes, "reason": led},
    )


async def end_as_crash_loop(
    lane: AgentLane, operation_id: str, passes: int, reason: str | None
) -> None:
    """Fail the operation with code `crash_loop`; the lane is free again."""
    error = crash_loop(passes, reason)
    # The harness shows its lanes to this package only: an administrator's act (§4.9).
    owner = lane._lane  # pyright: ignore[reportPrivateUsage]
    ended = await finalize_externally(owner, operation_id, error, BACKGROUND)
    if isinstance(ended, Err):
        logger.info("operation %s was over before it was given up", operation_id)
        return
    logger.error("gave up operation %s after %d passes without progress", operation_id, passes)
