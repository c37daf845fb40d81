"""What every request passes: an id of its own, and a limit to the size of its body."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http.problems import Problem, problem_response
from harness.ids import IdGenerator
from workers.logs import about

_log = logging.getLogger(__name__)

# How long, and for how many times the limit, a client may go on sending what is refused.
_FINISH_SECONDS = 5.0
_FINISH_BODIES = 8


class RequestIds:
    """Gives each request an id: in the scope for handlers and logs, and in `X-Request-Id`."""

    def __init__(self, app: ASGIApp, ids: IdGenerator) -> None:
        self._app = app
        self._ids = ids

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = self._ids.next()
        scope["laneway.request_id"] = request_id

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        with about(request=request_id):
            try:
                await self._app(scope, receive, stamped)
            except Exception:
                _log.exception("a request met a defect")
                raise


class BodyLimit:
    """Refuses a body of more than `limit` bytes with 413, announced or not; `others` are the limits of
    paths that have their own."""

    def __init__(self, app: ASGIApp, limit: int, others: Mapping[str, int] | None = None) -> None:
        self._app = app
        self._limit = limit
        self._others = dict(others or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        limit = self._others.get(scope["path"], self._limit)
        announced = Headers(scope=scope).get("content-length", "")
        if announced.isdigit() and int(announced) > limit:
            await _let_finish(receive, limit)
            refusal = problem_response(_too_large(limit), scope["laneway.request_id"])
            await refusal(scope, receive, send)
            return
        taken = 0

        async def counted() -> Message:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message.get("body", b""))
                if taken > limit:
                    if message.get("more_body", False):
                        await _let_finish(receive, limit)
                    raise _too_large(limit)
            return message

        await self._app(scope, counted, send)


async def _let_finish(receive: Receive, limit: int) -> None:
    """Throw away what is still sent, within reason: a client that is cut off while it sends never
    reads why."""
    thrown = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(_FINISH_SECONDS):
            while thrown < _FINISH_BODIES * limit:
                message = await receive()
                thrown += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body", False):
                    return


def _too_large(limit: int) -> Problem:
    return Problem(
        413,
        "BodyTooLarge",
        f"A body has at most {limit} bytes.",
        fields={"limit": limit},
        headers={"Connection": "close"},
    )
