"""`laneway dev`: Postgres, API and workers on this machine, in one tree of processes."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psycopg
from psycopg import sql

from app.cli.children import Child
from app.local_model import MODEL_ID, local_model_server
from app.scopes import SCOPES
from harness.environment import Environment
from storage_pg import migrate
from storage_pg.catalog import Catalog, open_engine
from storage_pg.embedded import EmbeddedServer

_DATABASE = "laneway"
_TENANT = "dev"
# A key is written to disk for the next start: the folder and the file are for their owner only.
_STATE_FILE = "dev.json"
_MODEL_CONTEXT = 2048


class DevState(msgspec.Struct, kw_only=True, rename="camel"):
    """What the next start on the same data needs."""

    app_password: str
    cluster_secret: str
    tenant_id: str | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class DevOptions:
    """How to run: where the data lies, which port, how many workers, with the local model or not.

    `model_tokens` is the longest answer of the local model; `environment` is added to the children's; `data` is a folder of this command's own.
    """

    data: Path
    port: int = 8080
    workers: int = 2
    local_model: bool = False
    model_tokens: int = 256
    environment: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class DevStack:
    """A running stack."""

    url: str
    api_key: str
    tenant_id: str
    database_url: str
    api: Child
    workers: list[Child]
    postgres_pid: int | None
    drain_seconds: float

    def pids(self) -> dict[str, object]:
        """The processes as they are now."""
        return {
            "dev": os.getpid(),
            "postgres": self.postgres_pid,
            "api": self.api.pid,
            "workers": [worker.pid for worker in self.workers],
        }


Progress = Callable[[str], None]


@asynccontextmanager
async def dev_stack(options: DevOptions, tell: Progress) -> AsyncGenerator[DevStack]:
    """Run the stack while the block runs; what was open on this data goes on.

    `tell` hears in a few words what happens. At the end the children drain, then Postgres stops;
    should this process die, all of them end too. Raises what the parts raise when they cannot start.
    """
    data = options.data.absolute()
    data.mkdir(parents=True, exist_ok=True, mode=0o700)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(EmbeddedServer(data / "postgres", progress=tell))
        state = _load(data)
        await asyncio.to_thread(_prepare, server, state, tell)
        database_url = _app_url(server, state)
        await _ensure_tenant(database_url, state, tell)
        _save(data, state)
        environment = {
            **os.environ,
            "LANEWAY_DATABASE_URL": database_url,
            "LANEWAY_DIRECT_DATABASE_URL": database_url,
            "LANEWAY_OWNER_DATABASE_URL": server.dsn(_DATABASE),
            "LANEWAY_CLUSTER_SECRET": state.cluster_secret,
            "LANEWAY_PORT": str(options.port),
            **options.environment,
        }
        if options.local_model:
            tell("starting the local model")
            model_url = await stack.enter_async_context(
                local_model_server(context=_MODEL_CONTEXT, progress=tell)
            )
            environment |= _model_environment(model_url, options.model_tokens)
        drain = float(environment.setdefault("LANEWAY_DRAIN_SECONDS", "10"))
        tell(f"starting the API and {options.workers} workers")
        api = Child("API", ["api"], environment, tell)
        workers = [
            Child(f"worker {number}", ["worker"], environment, tell)
            for number in range(1, options.workers + 1)
        ]
        stack.push_async_callback(_stop, [api, *workers], drain, tell)
        said, *_ = await asyncio.gather(api.start(), *(worker.start() for worker in workers))
        url = str(said["url"])
        # Another API process takes the same address.
        api.change({"LANEWAY_PORT": url.rpartition(":")[2]})
        assert state.api_key is not None
        assert state.tenant_id is not None
        yield DevStack(
            url=url,
            api_key=state.api_key,
            tenant_id=state.tenant_id,
            database_url=database_url,
            api=api,
            workers=workers,
            postgres_pid=server.pid,
            drain_seconds=drain,
        )


async def _stop(children: list[Child], drain: float, tell: Progress) -> None:
    for child in children:
        child.terminate()
    ended = asyncio.gather(*(child.ended() for child in children))
    try:
        async with asyncio.timeout(drain + 5):
            await asyncio.shield(ended)
    except TimeoutError:
        tell("some processes did not end in time and are killed")
    finally:
        # Also when this wait itself is cut short by a second signal.
        for child in children:
            child.kill()
        await ended


def _load(data: Path) -> DevState:
    file = data / _STATE_FILE
    if file.exists():
        return msgspec.json.decode(file.read_bytes(), type=DevState)
    return DevState(app_password=secrets.token_urlsafe(24), cluster_secret=secrets.token_hex(32))


def _save(data: Path, state: DevState) -> None:
    written = data / f"{_STATE_FILE}.new"
    with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(state))
    written.rename(data / _STATE_FILE)


def _app_url(server: EmbeddedServer, state: DevState) -> str:
    return server.dsn(_DATABASE, migrate.APP_ROLE, state.app_password)


def _prepare(server: EmbeddedServer, state: DevState, tell: Progress) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        roles = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (migrate.APP_ROLE,))
        verb = "ALTER" if roles.fetchone() else "CREATE"
        connection.execute(
            sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
                sql.SQL(verb), sql.Identifier(migrate.APP_ROLE), sql.Literal(state.app_password)
            )
        )
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (_DATABASE,))
        if found.fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_DATABASE)))
    migrate.upgrade(server.dsn(_DATABASE), progress=tell)


async def _ensure_tenant(database_url: str, state: DevState, tell: Progress) -> None:
    environment = Environment.system()
    engine = open_engine(database_url, size=1)
    try:
        catalog = Catalog(engine, environment.clock, environment.ids)
        if state.api_key is not None and await catalog.authenticate(state.api_key) is not None:
            return
        tenant = await catalog.find_tenant(_TENANT) or await catalog.create_tenant(_TENANT)
        minted = await catalog.create_key(tenant.id, "dev", SCOPES)
        state.tenant_id, state.api_key = tenant.id, minted.plain
        tell("made a tenant and an API key")
    finally:
        await engine.dispose()


def _model_environment(url: str, tokens: int) -> dict[str, str]:
    entry = {
        "provider": "local",
        "modelId": MODEL_ID,
        "api": "openai-chat",
        "baseUrl": f"{url}/v1",
        "contextWindow": _MODEL_CONTEXT,
        "maxTokens": tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    return {"LANEWAY_MODELS": json.dumps([entry]), "LANEWAY_DEFAULT_MODEL": f"local/{MODEL_ID}"}


def curl_line(stack: DevStack) -> str:
    """A command to begin with."""
    return (
        f"curl -s {stack.url}/v1/sessions -H 'Authorization: Bearer {stack.api_key}' "
        "-H 'Content-Type: application/json' -d '{\"name\": \"first\"}'"
    )


class Stop:
    """SIGTERM and SIGINT from now on: before `wait` they end the start, in it they end the wait, and
    after it they cut the end short. Make it in the task that is to be told."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._told = asyncio.Event()
        self._waiting = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._hear)

    async def wait(self) -> None:
        """Return when a signal comes."""
        self._waiting = True
        try:
            await self._told.wait()
        finally:
            self._waiting = False

    def _hear(self) -> None:
        if self._waiting:
            self._told.set()
        else:
            self._task.cancel()
