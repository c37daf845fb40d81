"""Runs the HTTP service of one process until it is told to stop, and drains it then."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType

import uvicorn
from fastapi import FastAPI

from app.http.app import create_app
from app.http.services import Services
from storage_pg import schema
from storage_pg.pooler import refuse_pooler
from workers.memory import settle
from workers.settings import Settings

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


# Longer than clients and load balancers keep an idle connection, so that it is they who end it: a
# server that ends one may do so just as a request is on its way.
_KEEP_ALIVE_SECONDS = 75


class _Server(uvicorn.Server):
    """Tells the application at once when a signal comes, so that streams and waits end in time."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        # uvicorn's own raises the signal once more when all is done: a drained process would end
        # as if it had been killed.
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains; a second one closes what is still open."""
        if self.should_exit:
            self.force_exit = True
        super().handle_exit(sig, frame)
        services = getattr(self._app.state, "services", None)
        if services is not None:
            services.draining.set()


async def _leave_when_told(server: _Server, app: FastAPI) -> None:
    """An operator's order to leave is followed as SIGTERM is."""
    # The application's services, typed where they are made.
    services: Services | None = getattr(app.state, "services", None)
    if services is not None:
        await services.host.leaving.wait()
        server.handle_exit(signal.SIGTERM, None)


async def serve(settings: Settings, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve until SIGTERM or SIGINT, or until an operator tells this host to leave, then drain: at most
    `drain_seconds` for what is under way.

    `ready` hears the URL once requests are answered; port 0 takes a free one. Raises `OSError`
    when the address is taken, and what stops the application from starting: `PoolerOnDirectUrl`,
    `SchemaBehind` and `SchemaAhead` among it.
    """
    # Asked before the application does, in whose log it would be a traceback.
    await refuse_pooler(settings.direct_url)
    await asyncio.to_thread(schema.check, settings.direct_url)
    door = _bind(settings.host, settings.port)
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        lifespan="on",
    )
    server = _Server(config, app)
    running = asyncio.create_task(server.serve(sockets=[door]))
    while not server.started and not running.done():  # noqa: ASYNC110  # uvicorn has no event for it
        await asyncio.sleep(0.01)
    if server.started:
        settle()
        if ready is not None:
            ready(_url(door))
    leaving = asyncio.create_task(_leave_when_told(server, app))
    try:
        await running
    finally:
        leaving.cancel()
    if not server.started:
        raise RuntimeError("the HTTP service did not start; its log says why")


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named: only for such sockets does asyncio turn off Nagle's algorithm, which held
    # every answer back for 40 ms.
    door = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((host, port))
    except BaseException:
        door.close()
        raise
    return door


def _url(door: socket.socket) -> str:
    host, port = str(door.getsockname()[0]), int(door.getsockname()[1])
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{shown}]:{port}" if ":" in shown else f"http://{shown}:{port}"
