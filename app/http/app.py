"""The application: routes, middleware, and the services that live as long as it does."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib.metadata import version
from typing import TypeAlias

from fastapi import FastAPI

from app.http import (
    copies,
    entries,
    events,
    health,
    lanes,
    openapi,
    operations,
    problems,
    queues,
    search,
    sessions,
    usage,
)
from app.http.middleware import BodyLimit, RequestIds
from app.http.services import Services, open_services
from app.http.tracing import RequestSpans
from harness.environment import Environment
from harness.telemetry_otel import Tracing
from workers.settings import Settings

MAX_BODY_BYTES = 8 * 1024 * 1024

Opening: TypeAlias = Callable[[], AbstractAsyncContextManager[Services]]


def create_app(
    settings: Settings, opening: Opening | None = None, *, tracing: Tracing | None = None
) -> FastAPI:
    """The HTTP service of one process.

    Its services are opened when it starts and closed when it ends; `opening` opens others, for a
    process that has some already. `tracing`: where spans go, by default to OpenTelemetry's global
    provider.
    """
    traces = tracing or Tracing()

    def open_own() -> AbstractAsyncContextManager[Services]:
        return open_services(settings, traces)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with (opening or open_own)() as services:
            app.state.services = services
            yield

    app = FastAPI(
        title="Laneway",
        version=version("laneway"),
        lifespan=lifespan,
        openapi_url="/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    for part in (
        health,
        copies,
        sessions,
        search,
        entries,
        usage,
        lanes,
        operations,
        queues,
        events,
    ):
        app.include_router(part.router)
    problems.install(app)
    openapi.install(app)
    app.add_middleware(
        BodyLimit,
        limit=MAX_BODY_BYTES,
        others={"/v1/sessions/import": settings.import_max_bytes},
    )
    app.add_middleware(RequestSpans, tracing=traces)
    app.add_middleware(RequestIds, ids=Environment.system().ids)
    return app
