"""Queues of a lane: messages for the open run's next turn, for its end, and for the next run."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from fastapi import APIRouter, Depends
from fastapi.responses import Response

from app.http.auth import Caller, Reader, Writer
from app.http.bodies import read_raw
from app.http.calls import Ctx, Svc, answer, listed, run
from app.http.idempotency import Key, fingerprint, make_once, queued
from app.http.openapi import route
from app.http.parameters import Lane, QueuedId, SessionId
from app.http.problems import not_found
from app.http.services import Services
from app.http.wire import QueueInput
from harness.context import Context
from harness.operation import values
from harness.operation.events import QueuedItem
from harness.operation.payloads import PendingMessage
from harness.operation.results import CancelQueued as Cancelled
from harness.operation.results import QueueContents, QueuedEntry
from harness.operation.state import RunState
from storage_pg.reader import SessionReader
from workers.commands import CancelQueued, FollowUp, NextRun, RequestKey, Steer

router = APIRouter(prefix="/v1/sessions/{session_id}/lanes/{lane}", tags=["queues"])

_Given: TypeAlias = Annotated[tuple[bytes, QueueInput], Depends(read_raw(QueueInput))]


def _queues(operation_id: str, text: str) -> dict[str, Any]:
    """How the three routes that queue a message are described."""
    return route(
        operation_id,
        {202: ("QueuedEntry", QueuedEntry)},
        body=("QueueInput", QueueInput),
        examples={"text": {"message": text}},
        problems=(404, 409),
    )


@router.post("/steer", **_queues("steer", "Stop counting, start again."))
async def steer(
    session_id: SessionId,
    lane: Lane,
    given: _Given,
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
) -> Response:
    """Queue a message for the open run's next turn."""
    command = Steer(lane=lane, message=given[1].message, images=given[1].images)
    return await _queue(services, caller, session_id, command, given[0], key, context)


@router.post("/follow-up", **_queues("followUp", "And then write a summary."))
async def follow_up(
    session_id: SessionId,
    lane: Lane,
    given: _Given,
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
) -> Response:
    """Queue a message for when the open run would otherwise end."""
    command = FollowUp(lane=lane, message=given[1].message, images=given[1].images)
    return await _queue(services, caller, session_id, command, given[0], key, context)


@router.post("/next-run", **_queues("nextRun", "Remember: the report is due on Friday."))
async def next_run(
    session_id: SessionId,
    lane: Lane,
    given: _Given,
    caller: Writer,
    services: Svc,
    context: Ctx,
    key: Key = None,
) -> Response:
    """Queue a message that the next run starts with; it starts none."""
    command = NextRun(lane=lane, message=given[1].message, images=given[1].images)
    return await _queue(services, caller, session_id, command, given[0], key, context)


async def _queue(
    services: Services,
    caller: Caller,
    session_id: str,
    command: Steer | FollowUp | NextRun,
    raw: bytes,
    key: str | None,
    context: Context,
) -> Response:
    async def make(request: RequestKey | None) -> bytes:
        keyed = msgspec.structs.replace(command, request=request)
        return await run(services, caller, session_id, keyed, context)

    asked = fingerprint(type(command).__name__, session_id, command.lane, raw)
    return await make_once(services, caller.tenant_id, key, asked, 202, make, queued)


@router.get("/queue", **route("getQueue", {200: ("QueueContents", QueueContents)}))
async def get_queue(
    session_id: SessionId, lane: Lane, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """Everything that is queued on the lane, as of one instant."""
    await listed(services, caller, session_id)
    async with services.sessions.snapshot(caller.tenant_id, session_id) as reader:
        state = await reader.get_value(values.lane_state(lane), context)
        if state is None:
            raise not_found("UnknownLane", "lane")
        steering: tuple[str, ...] = ()
        following: tuple[str, ...] = ()
        if state.value.current_operation_id is not None:
            current = values.operation_state(state.value.current_operation_id)
            operation = await reader.get_value(current, context)
            if operation is not None and isinstance(operation.value, RunState):
                steering = operation.value.inbox.steer
                following = operation.value.inbox.follow_up
        contents = QueueContents(
            steer=await _items(reader, steering, context),
            follow_up=await _items(reader, following, context),
            next_run=await _items(reader, state.value.pending_next_run, context),
        )
    return answer(contents)


async def _items(
    reader: SessionReader, ids: tuple[str, ...], context: Context
) -> tuple[QueuedItem, ...]:
    found: list[QueuedItem] = []
    for entry_id in ids:
        stored = await reader.get_value(values.pending_entry(entry_id), context)
        if stored is not None and isinstance(stored.value, PendingMessage):
            found.append(QueuedItem(entry_id=entry_id, message=stored.value.payload))
    return tuple(found)


@router.delete("/queue/{entry_id}", **route("cancelQueued", {200: ("CancelQueued", Cancelled)}))
async def cancel_queued(
    session_id: SessionId,
    lane: Lane,
    entry_id: QueuedId,
    caller: Writer,
    services: Svc,
    context: Ctx,
) -> Response:
    """Remove a queued message; says so when it was taken before."""
    command = CancelQueued(lane=lane, entry_id=entry_id)
    return answer(await run(services, caller, session_id, command, context))
