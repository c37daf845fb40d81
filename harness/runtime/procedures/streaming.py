"""Keeps a streamed response's frames durable without holding the stream back (§3.7)."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from harness.context import Context
from harness.frames import AssistantMessageFrame, PartialMessage, StartFrame
from harness.messages import AssistantMessage
from harness.operation import values
from harness.operation.events import MessageEnd, MessageStart, MessageUpdate
from harness.operation.state import (
    AssistantPhase,
    DeferredPending,
    DeferredPhase,
    GenerationPending,
    RunState,
)
from harness.operation.step import LaneProjection
from harness.runtime.lane import Auxiliary, Decision, Decline
from harness.runtime.procedures.base import DrivePass
from harness.session.session import SessionMutator
from harness.storage.address import ValueList
from harness.storage.protocol import ListElement, ListRead
from harness.storage.writes import append_list

T = TypeVar("T")


FRAME_PAGE = 1_000


class FrameReader(Protocol):
    """Whatever can read a page of a list: the storage, or a mutator on the line."""

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """See `Storage.read_list`."""
        ...


class FrameWriter:
    """Appends frames in stream order; only the newest write needs to be awaited at the end."""

    def __init__(self, p: DrivePass, response_entry_id: str) -> None:
        self._p = p
        self._response_id = response_entry_id
        self._address = values.pending_assistant_frames(p.operation_id, response_entry_id)
        self._latest: asyncio.Future[tuple[None, asyncio.Future[None] | None]] | None = None
        self._open = True

    def append(self, frame: AssistantMessageFrame) -> None:
        """Queue one frame now, fenced by the response that it belongs to."""
        if not self._open:
            return

        def plan(
            projection: LaneProjection, mutator: SessionMutator, context: Context
        ) -> Decision[None]:
            if pending_response(projection) != (self._p.operation_id, self._response_id):
                return Decline(None)
            return Auxiliary((append_list(self._address, frame),), None)

        self._latest = self._p.lane.submit(plan, self._p.context, drive=self._p.drive)

    async def finish(self) -> None:
        """Accept no more frames and wait for the last one; raises if any append failed."""
        self._open = False
        if self._latest is not None:
            await asyncio.shield(self._latest)


def pending_response(projection: LaneProjection) -> tuple[str, str] | None:
    """Operation and response id of the generation or poll that is under way."""
    operation = projection.operation
    if operation is None or not isinstance(operation.state, RunState):
        return None
    phase = operation.state.phase
    if isinstance(phase, AssistantPhase) and isinstance(phase.generation, GenerationPending):
        return operation.id, phase.generation.response_entry_id
    if isinstance(phase, DeferredPhase) and isinstance(phase.deferred, DeferredPending):
        return operation.id, phase.deferred.response_entry_id
    return None


class ResponseObserver:
    """Reports a streamed message and hands its frames to the writer, in that stream's order."""

    def __init__(self, p: DrivePass, response_entry_id: str, frames: FrameWriter) -> None:
        self._p = p
        self._response_id = response_entry_id
        self._frames = frames
        self._partial = PartialMessage()
        p.lane.live.partial = self._partial

    async def start(self, message: AssistantMessage, frame: StartFrame | None) -> None:
        """See `StreamObserver.start`."""
        if frame is not None:
            self._frames.append(frame)
            self._partial.apply(frame)
        await self._p.emit(
            MessageStart(lane=self._p.lane.name, run_id=self._p.operation_id, message=message)
        )

    async def update(self, message: AssistantMessage, frame: AssistantMessageFrame) -> None:
        """See `StreamObserver.update`."""
        self._frames.append(frame)
        self._partial.apply(frame)
        await self._p.emit(
            MessageUpdate(
                lane=self._p.lane.name,
                run_id=self._p.operation_id,
                message=message,
                event=frame,
            )
        )

    async def end(self, message: AssistantMessage) -> None:
        """See `StreamObserver.end`."""
        await self._p.emit(
            MessageEnd(
                lane=self._p.lane.name,
                run_id=self._p.operation_id,
                message=message,
                entry_id=self._response_id,
            )
        )


async def report_synthetic(
    p: DrivePass, message: AssistantMessage, response_entry_id: str, *, recovery: bool
) -> None:
    """The lifecycle of a response that the harness itself settles: no updates, no hook (§5.5)."""
    await p.emit(
        MessageStart(lane=p.lane.name, run_id=p.operation_id, message=message, recovery=recovery),
        MessageEnd(
            lane=p.lane.name,
            run_id=p.operation_id,
            message=message,
            entry_id=response_entry_id,
            recovery=recovery,
        ),
    )


async def read_frames(
    reader: FrameReader, operation_id: str, response_entry_id: str, context: Context
) -> AssistantMessage | None:
    """The committed partial of a response, read in bounded pages (§4.5)."""
    address = values.pending_assistant_frames(operation_id, response_entry_id)
    partial = PartialMessage()
    cursor: int | None = None
    while True:
        page = await reader.read_list(address, ListRead(cursor=cursor, limit=FRAME_PAGE), context)
        for element in page:
            partial.apply(element.value)
        if len(page) < FRAME_PAGE:
            return partial.message()
        cursor = page[-1].seq
