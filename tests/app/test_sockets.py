"""No answer is held back: connections to each of our servers send small packets at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from app.http import serve
from app.local_model import front
from tests.app.kit import World


async def is_prompt(door: socket.socket) -> bool:
    """Whether a connection that is accepted through this socket has Nagle's algorithm off."""
    accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    async def came(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        accepted.set_result(bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        writer.close()

    async with await asyncio.start_server(came, sock=door):
        _, writer = await asyncio.open_connection(*door.getsockname()[:2])
        try:
            return await accepted
        finally:
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize(
    "bind", [lambda: serve._bind("127.0.0.1", 0), lambda: front.bind(0)], ids=["api", "model"]
)
async def test_a_door_sends_at_once(bind: Callable[[], socket.socket]) -> None:
    assert await is_prompt(bind())


@pytest.mark.asyncio(loop_scope="module")
async def test_the_door_between_hosts_is_one_of_these(world: World) -> None:
    door = world.apis[0].services.host._server._socket
    assert door.proto == socket.IPPROTO_TCP
