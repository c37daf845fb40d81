"""Whether the process lives and whether it should get requests; its metrics, for who has the token."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response

from app.http.calls import Svc, answer
from app.http.openapi import route
from app.http.problems import Problem, unavailable
from app.http.wire import Health
from harness.errors import StorageError
from workers.exposition import CONTENT_TYPE

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


@router.get("/metrics", include_in_schema=False)
async def metrics(request: Request, services: Svc) -> Response:
    """Metrics for Prometheus. There are none on this port unless a token for them is configured, and a
    tenant's key is no such token; the internal port answers without one."""
    exposition = services.host.exposition
    if not exposition.public:
        raise Problem(404, "RouteNotFound", "There is no such path.")
    presented = request.headers.get("authorization", "").partition(" ")[2]
    if not exposition.admits(presented):
        challenge = {"WWW-Authenticate": "Bearer"}
        raise Problem(401, "Unauthenticated", "This path needs its own token.", headers=challenge)
    return Response(await exposition.render(), media_type=CONTENT_TYPE)
