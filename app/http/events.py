"""What happens on a lane or a session: a snapshot, and event streams that begin with one (§5.4, §5.5).

A stream is `snapshot`, which replaces everything the client has, then events in order, comments as
heartbeats, and `end` with a reason when there will be no more. A reconnect, to any process, gets a new
snapshot, so nothing is missed and nothing comes twice. `message_update` carries the delta and not the
message so far: the snapshot and the deltas make it (docs/decisions).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, assert_never

import anyio
from fastapi import APIRouter, Request
from fastapi.responses import Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from app.http.auth import Caller, Reader
from app.http.calls import Ctx, Svc, answer, listed, reading, require_lane
from app.http.openapi import route
from app.http.parameters import Lane, SessionId
from app.http.problems import unavailable
from app.http.services import Services
from app.http.wire import StreamedEvent, StreamEnd
from harness.codec import encode
from harness.context import Context
from harness.operation.results import LaneSnapshot
from workers.watching import EndItem, EventItem, SnapshotItem, StreamItem

router = APIRouter(prefix="/v1/sessions/{session_id}", tags=["events"])

HEARTBEAT_SECONDS = 15
_RETRY_MS = 1_000
# How long a stream may take to say goodbye when the process is told to stop.
_GOODBYE_SECONDS = 2.0
# A client that takes nothing for this long is gone, or has to connect again.
_SEND_SECONDS = 30.0


@router.get("/lanes/{lane}/snapshot", **route("getSnapshot", {200: ("LaneSnapshot", LaneSnapshot)}))
async def get_snapshot(
    session_id: SessionId, lane: Lane, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """Everything needed to show the lane now; the transcript starts at the newest compaction."""
    await require_lane(await reading(services, caller, session_id), lane, context)
    watched = services.host.watch(caller.tenant_id, session_id, lane, context)
    async with aclosing(watched):
        async for item in watched:
            if isinstance(item, SnapshotItem):
                return answer(item.data)
    raise unavailable("The session's host went away; try again.")


_STREAM = {200: ("StreamedEvent", StreamedEvent)}


@router.get(
    "/lanes/{lane}/events",
    **route("streamLaneEvents", _STREAM, media_type="text/event-stream"),
)
async def stream_lane(
    request: Request,
    session_id: SessionId,
    lane: Lane,
    caller: Reader,
    services: Svc,
    context: Ctx,
) -> Response:
    """Server-sent events of one lane: `snapshot`, then each event under its type's name."""
    await require_lane(await reading(services, caller, session_id), lane, context)
    return _response(services, request, caller, session_id, lane, context)


@router.get("/events", **route("streamSessionEvents", _STREAM, media_type="text/event-stream"))
async def stream_session(
    request: Request, session_id: SessionId, caller: Reader, services: Svc, context: Ctx
) -> Response:
    """Server-sent events of all lanes: `snapshot` with the lanes, then each event."""
    await listed(services, caller, session_id)
    return _response(services, request, caller, session_id, None, context)


def _response(
    services: Services,
    request: Request,
    caller: Caller,
    session_id: str,
    lane: str | None,
    context: Context,
) -> Response:
    watched = services.host.watch(caller.tenant_id, session_id, lane, context)
    stopping = anyio.Event()
    presented = request.headers.get("authorization", "").partition(" ")[2]
    return EventSourceResponse(
        _events(services, watched, stopping, presented),
        ping=HEARTBEAT_SECONDS,
        ping_message_factory=lambda: ServerSentEvent(comment="alive"),
        sep="\n",
        send_timeout=_SEND_SECONDS,
        shutdown_event=stopping,
        shutdown_grace_period=_GOODBYE_SECONDS,
    )


async def _events(
    services: Services,
    watched: AsyncGenerator[StreamItem, None],
    stopping: anyio.Event,
    presented: str,
) -> AsyncGenerator[bytes, None]:
    yield f"retry: {_RETRY_MS}\n\n".encode()
    stops = [
        asyncio.ensure_future(services.draining.wait()),
        asyncio.ensure_future(stopping.wait()),
    ]
    coming: asyncio.Future[StreamItem | None] | None = None
    services.host.metrics.stream_opened()
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(watched, None))
            done, _ = await asyncio.wait(
                [coming, *stops], timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                # A stream must not outlive its key.
                if await services.keys.check(presented) is None:
                    yield _end("unauthorized")
                    return
                continue
            if coming not in done:
                yield _end("draining")
                return
            item, coming = coming.result(), None
            match item:
                case SnapshotItem(data=data):
                    yield _frame("snapshot", data)
                case EventItem(type=name, data=data):
                    yield _frame(name, data)
                case EndItem(reason=reason):
                    yield _end(reason)
                    return
                case None:
                    return
                case _:
                    assert_never(item)
    finally:
        services.host.metrics.stream_closed()
        # The client's going cancels everything around here; the watch is given back all the same.
        with anyio.CancelScope(shield=True):
            tasks: list[asyncio.Future[Any]] = [*stops, *([] if coming is None else [coming])]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            await watched.aclose()


def _frame(name: str, data: bytes) -> bytes:
    # JSON on one line: no newline of the data can end the frame early.
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def _end(reason: str) -> bytes:
    return _frame("end", encode(StreamEnd(reason=reason)))
