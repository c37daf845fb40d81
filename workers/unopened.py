"""What becomes of an operation whose session cannot be opened: its passes count, and the fifth ends it (design §6)."""

from __future__ import annotations

import logging
from typing import assert_never

from harness.clock import Clock
from harness.codec import valid_unicode
from harness.context import BACKGROUND
from harness.errors import HarnessError, OperationKind
from harness.operation import values
from harness.operation.durable import OperationError
from harness.operation.lane_state import (
    IDLE_LANE,
    CompactionLastResult,
    LaneLastResult,
    LaneState,
    NavigationLastResult,
    RunLastResult,
)
from harness.storage.protocol import Storage
from storage_pg.open_operations import whereabouts
from storage_pg.storage import Pool
from storage_pg.unopened import (
    OpenRow,
    count_unopened,
    end_unopened,
    hopeless_operations,
    open_of_session,
)
from workers.committed import CommittedSessions
from workers.meter import SILENT, HostMeter
from workers.poison import MOST_PASSES, crash_loop

logger = logging.getLogger(__name__)


class Unopened:
    """Judges drives that failed before a pass could begin: the state of an operation is unreadable,
    the lane contradicts it, the agent's profile makes no harness."""

    def __init__(
        self, pool: Pool, committed: CommittedSessions, clock: Clock, meter: HostMeter = SILENT
    ) -> None:
        self._pool = pool
        self._committed = committed
        self._clock = clock
        self._meter = meter

    async def failed(
        self, tenant_id: str, session_id: str, operation_id: str, error: Exception
    ) -> None:
        """Count a drive of this operation that `error` kept from beginning. Nobody owns the session.

        Where one lane is to blame, what is open there is counted, and the others' operations go on
        when it has been ended; where none is, this operation is. Raises `StorageError`.
        """
        rows = await open_of_session(self._pool, tenant_id, session_id)
        damaged = await self._committed.damaged_lanes(
            tenant_id, session_id, {row.lane for row in rows}
        )
        now = self._clock.now_ms()
        for row in rows:
            own = row.operation_id == operation_id
            # One that is due has drives of its own, which count it.
            waits = row.due_at > now
            if not (own or waits) or (damaged and row.lane not in damaged):
                continue
            if not damaged and not own:
                continue
            reason = damaged.get(row.lane) or f"{type(error).__name__}: {error}"
            await self._count(tenant_id, session_id, row, valid_unicode(reason))

    async def end_hopeless(self) -> None:
        """End what killed so many hosts that came for it, before another one opens its session.
        Raises `StorageError`."""
        for found in await hopeless_operations(self._pool, MOST_PASSES):
            await self._end(
                found.tenant_id, found.session_id, found.row, found.passes, found.reason
            )

    async def _count(self, tenant_id: str, session_id: str, row: OpenRow, reason: str) -> None:
        passes = await count_unopened(self._pool, tenant_id, session_id, row.operation_id, reason)
        if passes is None:
            return
        logger.warning(
            "operation %s cannot be driven, for the %d. time: its session does not open",
            row.operation_id,
            passes,
        )
        if passes >= MOST_PASSES:
            await self._end(tenant_id, session_id, row, passes, reason)

    async def _end(
        self, tenant_id: str, session_id: str, row: OpenRow, passes: int, reason: str | None
    ) -> None:
        place = await whereabouts(self._pool, tenant_id, session_id)
        if place is None:
            return
        reader = self._committed.reader(tenant_id, session_id)
        error = crash_loop(passes, reason)
        ended = await end_unopened(
            self._pool,
            tenant_id,
            session_id,
            row.operation_id,
            seen_seq=place.next_seq,
            lane_state=await _freed(reader, row),
            result=await _result(reader, row, error),
            now_ms=self._clock.now_ms(),
        )
        if ended:
            # No commit of an owner tells it.
            self._meter.ended(row.kind, "failed", error.code)
            logger.error("gave up operation %s: its session does not open", row.operation_id)


async def _freed(storage: Storage, row: OpenRow) -> LaneState | None:
    """The lane's state without the operation; None when the lane belongs to another one."""
    try:
        stored = await storage.get_value(values.lane_state(row.lane), BACKGROUND)
    except HarnessError:
        return IDLE_LANE
    if stored is None:
        return IDLE_LANE
    if stored.value.current_operation_id not in (None, row.operation_id):
        return None
    return LaneState(current_operation_id=None, pending_next_run=stored.value.pending_next_run)


async def _result(storage: Storage, row: OpenRow, error: OperationError) -> LaneLastResult:
    """The outcome as the lane will remember it, at the leaf where the lane stands, as far as that can be read."""
    leaf: str | None = None
    try:
        stored = await storage.get_value(values.lane_leaf(row.lane), BACKGROUND)
        leaf = None if stored is None else stored.value
    except HarnessError:
        logger.debug("the leaf of operation %s's lane is unreadable", row.operation_id)
    kind: OperationKind = row.kind
    match kind:
        case "run":
            return RunLastResult(
                operation_id=row.operation_id, outcome="failed", leaf_id=leaf or "", error=error
            )
        case "compaction":
            return CompactionLastResult(
                operation_id=row.operation_id, outcome="failed", leaf_id=leaf or "", error=error
            )
        case "navigation":
            return NavigationLastResult(
                operation_id=row.operation_id,
                outcome="failed",
                leaf_id=leaf,
                old_leaf_id=leaf,
                error=error,
            )
        case _:
            assert_never(kind)
