"""The API as its clients see it: two API servers and a worker on one database, over real HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from app.client import StreamEvent, read_events
from app.http.app import create_app
from app.http.services import Services
from app.scopes import SCOPES
from harness.telemetry_otel import Tracing
from tests.app.contract import Contract
from tests.postgres import Database
from workers.host import SessionHost
from workers.jobs import JobRunner
from workers.settings import Settings

SECRET = "a secret of these tests alone"


def settings_for(database: Database, **more: Any) -> Settings:
    """Settings of a process in these tests."""
    return Settings(
        database_url=database.app_dsn,
        direct_database_url=database.direct_dsn,
        owner_database_url=database.owner_dsn,
        cluster_secret=SECRET,  # pyright: ignore[reportArgumentType]  # pydantic makes a secret of it
        tools="tests.app.tools:tools",
        port=0,
        retry_base_ms=10,
        **more,
    )


class _Server(uvicorn.Server):
    """Leaves the test runner's signals alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@dataclass(slots=True)
class Api:
    """One API server."""

    app: FastAPI
    url: str

    @property
    def services(self) -> Services:
        return self.app.state.services


@asynccontextmanager
async def running_api(settings: Settings, tracing: Tracing | None = None) -> AsyncGenerator[Api]:
    """An API server on a free port while the block runs."""
    app = create_app(settings, tracing=tracing)
    config = uvicorn.Config(
        app, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=2
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:
        assert not task.done(), task.result()
        await asyncio.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield Api(app, f"http://127.0.0.1:{port}")
    finally:
        app.state.services.draining.set()
        server.should_exit = True
        await task


@asynccontextmanager
async def running_worker(
    settings: Settings, tracing: Tracing | None = None
) -> AsyncGenerator[SessionHost]:
    """A worker in this process while the block runs."""
    host = SessionHost(settings, "worker", tracing=tracing)
    runner = JobRunner(host)
    await host.start()
    await runner.start()
    try:
        yield host
    finally:
        await runner.stop()
        await host.drain(2)
        await host.close()


@dataclass(slots=True)
class Tenant:
    """A tenant, its key, and a client that speaks for it."""

    id: str
    key: str
    client: httpx.AsyncClient
    world: World

    def via(self, api: int) -> httpx.AsyncClient:
        """A client of another API server; whoever asks closes it."""
        return self.world.client(self.key, api)

    async def session(self, **body: Any) -> str:
        """A new session's id."""
        made = await self.client.post("/v1/sessions", json=body)
        assert made.status_code == 201, made.text
        return made.json()["id"]

    async def run(self, session: str, prompt: Any, lane: str = "main") -> dict[str, Any]:
        """The receipt of a prompt that ran to its end."""
        answer = await self.client.post(
            f"/v1/sessions/{session}/lanes/{lane}/operations",
            json={"kind": "prompt", "prompt": prompt},
            headers={"Prefer": "wait=30"},
        )
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def submit(self, session: str, prompt: Any, lane: str = "main") -> str:
        """The id of an accepted prompt."""
        answer = await self.client.post(
            f"/v1/sessions/{session}/lanes/{lane}/operations",
            json={"kind": "prompt", "prompt": prompt},
        )
        assert answer.status_code == 202, answer.text
        return answer.json()["operationId"]

    async def done(self, operation: str) -> dict[str, Any]:
        """The receipt of an operation, once it is over."""
        answer = await self.client.get(f"/v1/operations/{operation}?wait=30")
        assert answer.status_code == 200, answer.text
        assert answer.json()["status"] == "done"
        return answer.json()

    async def entries(self, session: str) -> list[dict[str, Any]]:
        """All entries of a session."""
        answer = await self.client.get(f"/v1/sessions/{session}/entries?limit=1000")
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]


class World:
    """Everything that the tests of one module share; ids and tenants keep them apart."""

    def __init__(self, database: Database, apis: list[Api], stack: AsyncExitStack) -> None:
        self.database = database
        self.apis = apis
        self.contract = Contract(apis[0].app)
        self._stack = stack

    def client(self, key: str | None, api: int = 0) -> httpx.AsyncClient:
        """A client that presents this key and checks every answer against the document."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        return httpx.AsyncClient(
            base_url=self.apis[api].url,
            headers=headers,
            timeout=40,
            event_hooks={"response": [self.contract.check]},
        )

    async def tenant(self) -> Tenant:
        """A new tenant with a key for everything."""
        services = self.apis[0].services
        made = await services.catalog.create_tenant(services.environment.ids.next())
        key = await self.key(made.id)
        client = await self._stack.enter_async_context(self.client(key))
        return Tenant(made.id, key, client, self)

    async def key(self, tenant: str, *scopes: str, expires_at: int | None = None) -> str:
        """Another key of a tenant."""
        minted = await self.apis[0].services.catalog.create_key(
            tenant, "test", scopes or SCOPES, expires_at
        )
        return minted.plain


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds; the test's own time limit is the only one."""
    while not condition():  # noqa: ASYNC110  # what is waited for has no event of its own
        await asyncio.sleep(0.005)


async def collect(
    client: httpx.AsyncClient, path: str, last: Callable[[StreamEvent], bool]
) -> list[StreamEvent]:
    """Events of a stream up to the one that `last` accepts; the connection is closed then."""
    found: list[StreamEvent] = []
    events = read_events(client, path)
    async with contextlib.aclosing(events):
        async for event in events:
            found.append(event)
            if last(event):
                break
    return found
