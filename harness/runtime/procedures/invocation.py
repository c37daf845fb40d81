"""The capabilities of one running tool call: durable memos and progress updates (§3.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from harness.codec import JsonValue, foreign_json
from harness.context import Context
from harness.errors import HarnessError, InvalidArgument
from harness.execution.tools import PreparedCall
from harness.messages import AgentToolResult, safe_tool_result
from harness.operation import values
from harness.operation.events import ToolUpdateEvent
from harness.operation.state import CallPending, RunState, ToolsPhase
from harness.operation.step import LaneProjection
from harness.runtime.lane import Auxiliary, Decision, Decline, Plan
from harness.runtime.procedures.base import DrivePass
from harness.session.session import SessionMutator
from harness.settings import ReplayPolicy
from harness.storage.address import Value
from harness.storage.writes import delete_value, set_value
from harness.telemetry import NOOP_TELEMETRY, Attributes, Span

T = TypeVar("T")


class InvocationExpired(HarnessError):
    """The tool call has settled; its memos are gone and can no longer be written."""

    def __init__(self) -> None:
        super().__init__("this tool call has settled; its memos are gone")


def call_pending(projection: LaneProjection, operation_id: str, source_index: int) -> bool:
    """Whether that call's effect is still unsettled in the projection."""
    operation = projection.operation
    if operation is None or operation.id != operation_id:
        return False
    state = operation.state
    if not isinstance(state, RunState) or not isinstance(state.phase, ToolsPhase):
        return False
    return any(
        isinstance(call, CallPending) and call.source_index == source_index
        for call in state.phase.batch.calls
    )


class Invocation:
    """Memo access for one logical call; the id survives safe replay."""

    def __init__(self, p: DrivePass, invocation_id: str, turn_id: str, source_index: int) -> None:
        self._p = p
        self._invocation_id = invocation_id
        self._turn_id = turn_id
        self._source_index = source_index
        self._expired = False

    @property
    def invocation_id(self) -> str:
        """See `ToolInvocation.invocation_id`."""
        return self._invocation_id

    @property
    def operation_id(self) -> str:
        """See `ToolInvocation.operation_id`."""
        return self._p.operation_id

    @property
    def turn_id(self) -> str:
        """See `ToolInvocation.turn_id`."""
        return self._turn_id

    def expire(self) -> None:
        """End the capability: the tool has returned."""
        self._expired = True

    def get_memo(self, name: str) -> Awaitable[JsonValue | None]:
        """See `ToolInvocation.get_memo`. Queued when called, so it sees earlier writes."""
        address = self._address(name)

        async def plan(
            projection: LaneProjection, mutator: SessionMutator, context: Context
        ) -> Decision[JsonValue | None]:
            self._check(projection)
            stored = await mutator.get_value(address, context)
            return Decline(None if stored is None else stored.value)

        return self._queue(plan)

    def set_memo(self, name: str, memo: JsonValue | None) -> Awaitable[None]:
        """See `ToolInvocation.set_memo`. Queued when called."""
        address = self._address(name)
        write = delete_value(address) if memo is None else set_value(address, foreign_json(memo))

        def plan(
            projection: LaneProjection, mutator: SessionMutator, context: Context
        ) -> Decision[None]:
            self._check(projection)
            return Auxiliary((write,), None)

        return self._queue(plan)

    def _address(self, name: str) -> Value[JsonValue]:
        if not name or ":" in name:
            raise InvalidArgument("a memo name may not be empty or contain a colon")
        if self._expired:
            raise InvocationExpired
        return values.operation_tool_memo(self._p.operation_id, self._invocation_id, name)

    def _check(self, projection: LaneProjection) -> None:
        if not call_pending(projection, self._p.operation_id, self._source_index):
            raise InvocationExpired

    def _queue(self, plan: Plan[T]) -> Awaitable[T]:
        future = self._p.lane.submit(plan, self._p.context, drive=self._p.drive)

        async def result() -> T:
            return (await asyncio.shield(future))[0]

        return result()


class UpdateChannel:
    """Receives a tool's progress: always reported, and stored when a checkpoint is asked for."""

    def __init__(
        self,
        p: DrivePass,
        call: PreparedCall,
        turn_id: str,
        invocation_id: str,
        source_index: int,
        recovery: bool,
    ) -> None:
        self._p = p
        self._call = call
        self._turn_id = turn_id
        self._invocation_id = invocation_id
        self._source_index = source_index
        self._recovery = recovery
        self._open = True
        self._delivery: asyncio.Future[None] | None = None
        self._write: asyncio.Future[tuple[None, asyncio.Future[None] | None]] | None = None

    def started(self, delivery: asyncio.Future[None] | None) -> None:
        """Remember the delivery of the start event, which updates follow."""
        self._delivery = delivery or self._delivery

    def __call__(self, partial: AgentToolResult, *, checkpoint: bool = False) -> None:
        if not self._open:
            return
        partial = safe_tool_result(partial)
        self._p.lane.live.tool_progress(self._invocation_id, partial)
        if self._p.core.events.listened:
            event = ToolUpdateEvent(
                lane=self._p.lane.name,
                run_id=self._p.operation_id,
                turn_id=self._turn_id,
                tool_call_id=self._call.call.id,
                tool_name=self._call.call.name,
                partial_result=partial,
                recovery=self._recovery,
            )
            delivery = self._p.core.events.emit_batch((event,), self._p.context)
            self._delivery = delivery or self._delivery
        if checkpoint:
            self._checkpoint(partial)

    def _checkpoint(self, partial: AgentToolResult) -> None:
        address = values.pending_tool_output(self._p.operation_id, self._invocation_id)

        def plan(
            projection: LaneProjection, mutator: SessionMutator, context: Context
        ) -> Decision[None]:
            if not call_pending(projection, self._p.operation_id, self._source_index):
                return Decline(None)
            return Auxiliary((set_value(address, partial),), None)

        self._write = self._p.lane.submit(plan, self._p.context, drive=self._p.drive)

    def close(self) -> None:
        """Accept no more updates."""
        self._open = False

    async def drained(self) -> None:
        """Wait for the last delivery and the last stored checkpoint; raises if a write failed."""
        if self._delivery is not None:
            await asyncio.shield(self._delivery)
        if self._write is not None:
            await asyncio.shield(self._write)


class ToolSpan:
    """The span of one real execution: begun at its admission, ended once (§5.8).

    `inside` is the pass as the tool has it: what the tool reports and keeps hangs below its span.
    """

    def __init__(
        self,
        p: DrivePass,
        tool_name: str,
        turn_id: str,
        invocation_id: str,
        replay: ReplayPolicy,
        *,
        recovery: bool,
    ) -> None:
        self.inside = p.below(p.context.telemetry)
        self._attributes: Attributes = {
            **p.identity,
            "pi.turn.id": turn_id,
            "pi.tool.name": tool_name,
            "pi.tool.invocation_id": invocation_id,
            "pi.tool.replay": replay,
            "pi.tool.recovery": recovery,
        }
        self._span: Span | None = None

    def start(self) -> Context:
        """Begin the span; returns the context for the tool, which carries the operation's signal."""
        context = self.inside.context
        if context.telemetry is not NOOP_TELEMETRY:
            self._span = context.telemetry.start("pi.harness.tool", self._attributes)
            context = self.inside.context = context.with_telemetry(self._span.context)
        return context.with_abort_signal(self.inside.gate.signal)

    def end(self, *, is_error: bool) -> None:
        """End the span if it began and has not ended."""
        if self._span is not None:
            self._span.end({"pi.tool.is_error": is_error}, error="tool_error" if is_error else None)
            self._span = None
