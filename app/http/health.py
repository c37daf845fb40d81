"""Whether the process lives and whether it should get requests."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter
from fastapi.responses import Response

from app.http.calls import Svc, answer
from app.http.openapi import route
from app.http.problems import unavailable
from app.http.wire import Health
from harness.errors import StorageError

router = APIRouter(tags=["health"])

_DATABASE_SECONDS = 2.0


@router.get("/livez", **route("livez", {200: ("Health", Health)}, problems=(), public=True))
async def livez() -> Response:
    """The process lives; says nothing about what it depends on."""
    return answer(Health(status="ok"))


@router.get("/readyz", **route("readyz", {200: ("Health", Health)}, problems=(503,), public=True))
async def readyz(services: Svc) -> Response:
    """The process takes requests: it is not draining, and the database answers."""
    if services.draining.is_set():
        raise unavailable("This process is draining.")
    try:
        async with asyncio.timeout(_DATABASE_SECONDS):
            await services.ping()
    except (TimeoutError, StorageError) as error:
        raise unavailable("The database does not answer.") from error
    return answer(Health(status="ready"))
