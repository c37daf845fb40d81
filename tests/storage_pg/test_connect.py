"""Connections that are given up halfway."""

from __future__ import annotations

import asyncio

from storage_pg.connect import connect


async def test_a_cancelled_attempt_closes_its_socket_though_somebody_keeps_the_task() -> None:
    came = asyncio.Event()
    gone = asyncio.Event()

    async def silent_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        came.set()
        while await reader.read(1024):
            pass
        gone.set()
        writer.close()

    server = await asyncio.start_server(silent_server, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        attempt = asyncio.ensure_future(connect(f"postgresql://someone@127.0.0.1:{port}/any"))
        await came.wait()
        attempt.cancel()
        await asyncio.wait([attempt])
        assert attempt.cancelled()
        await gone.wait()
