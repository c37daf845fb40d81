"""What routes do with a request's parts: run a command, read what is committed, answer in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import Response

from app.http.auth import Caller
from app.http.problems import not_found, rejection
from app.http.services import Services
from app.http.tracing import traced_context
from harness.codec import encode
from harness.context import Context
from harness.operation import values
from harness.result import Err
from storage_pg.catalog import SessionListing
from storage_pg.reader import SessionReader
from workers.commands import Command


async def services_of(request: Request) -> Services:
    """The application's services."""
    # Not async for waiting: the framework runs plain functions on a thread.
    # Starlette keeps application state untyped; `create_app` puts nothing else there.
    services: Services = request.app.state.services
    return services


Svc = Annotated[Services, Depends(services_of)]


async def context_of(request: Request) -> Context:
    """The context of a request's commands and reads: inside its span, where there is one.

    It carries no abort signal: what a client asked for is done even when it does not stay to hear
    the answer. Waiting for an outcome is another matter, and ends with the client.
    """
    return traced_context(request.scope)


Ctx = Annotated[Context, Depends(context_of)]


async def run(
    services: Services, caller: Caller, session_id: str, command: Command, context: Context
) -> bytes:
    """Have the command executed wherever the session is; returns the JSON of its result.

    Raises `Problem` for an expected rejection, `SessionNotFound` and other storage errors.
    """
    reply = await services.host.execute(caller.tenant_id, session_id, command, context)
    if isinstance(reply, Err):
        raise rejection(reply.error)
    return reply.value


async def listed(services: Services, caller: Caller, session_id: str) -> SessionListing:
    """The session as listed; raises `Problem` when the caller has no such session."""
    found = await services.catalog.get_session(caller.tenant_id, session_id)
    if found is None:
        raise not_found("SessionNotFound", "session")
    return found


async def reading(services: Services, caller: Caller, session_id: str) -> SessionReader:
    """Committed data of the session; raises `Problem` when the caller has no such session."""
    await listed(services, caller, session_id)
    return services.sessions.reader(caller.tenant_id, session_id)


async def require_lane(reader: SessionReader, lane: str, context: Context) -> str | None:
    """Where the lane stands; raises `Problem` when the session has no such lane."""
    leaf = await reader.get_value(values.lane_leaf(lane), context)
    if leaf is None:
        raise not_found("UnknownLane", "lane")
    return leaf.value


def answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A durable or wire type as JSON; bytes are JSON already."""
    body = value if isinstance(value, bytes) else encode(value)
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def no_content() -> Response:
    """Done, and nothing to say."""
    return Response(status_code=204)
