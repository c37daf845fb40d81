"""A network that can fall silent: a TCP proxy that stops passing bytes on and closes nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit


class SilentNetwork:
    """The way to one server. Nobody at either end is told when it falls silent."""

    def __init__(self, dsn: str) -> None:
        self._parts = urlsplit(dsn)
        self._passing = asyncio.Event()
        self._passing.set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def dsn(self) -> str:
        """The server's address by this way."""
        who = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{who}@127.0.0.1:{self._port}"))

    def fall_silent(self) -> None:
        """From now on nothing arrives, in either direction, on old connections and new ones."""
        self._passing.clear()

    def speak(self) -> None:
        """What was held back arrives, and all that follows."""
        self._passing.set()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[SilentNetwork]:
        """Pass on while the block runs."""
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = int(server.sockets[0].getsockname()[1])
        try:
            yield self
        finally:
            server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        for source, target in ((reader, there[1]), (there[0], writer)):
            pump = asyncio.ensure_future(self._pump(source, target))
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            try:
                while True:
                    piece = await source.read(65_536)
                    # The end of a connection is held back like everything else.
                    await self._passing.wait()
                    if not piece:
                        return
                    target.write(piece)
                    await target.drain()
            finally:
                target.close()
