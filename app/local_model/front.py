"""The door of the model server: one request a connection, and the client is told so.

llama.cpp closes a connection after every streamed answer without having announced it. A client
that keeps connections and sends its next request at once, as every pooling client does, then loses
about every third one to "disconnected without sending a response". Asked to close, it says so in
its answer. So this relay asks for it in every request and passes on all else untouched.
"""

import asyncio
import contextlib
import socket
from asyncio import StreamReader, StreamWriter
from urllib.parse import urlsplit

_CHUNK = 1 << 16


def bind(port: int) -> socket.socket:
    """A socket on 127.0.0.1 that does not listen yet: connections are refused until it does.

    Port 0 takes a free one. Raises `OSError` when the port is taken.
    """
    # Named: else asyncio leaves Nagle's algorithm on.
    door = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(("127.0.0.1", port))
    except BaseException:
        door.close()
        raise
    return door


async def open_door(door: socket.socket, upstream: str) -> asyncio.Server:
    """Listen on `door` and hand each request to the server at the URL `upstream`."""
    to = urlsplit(upstream)
    assert to.hostname is not None
    assert to.port is not None
    host, port = to.hostname, to.port

    async def accept(reader: StreamReader, writer: StreamWriter) -> None:
        # Either side may vanish at any moment; that ends this connection and concerns no other.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _relay(reader, writer, host, port)
        writer.close()

    return await asyncio.start_server(accept, sock=door)


async def _relay(reader: StreamReader, writer: StreamWriter, host: str, port: int) -> None:
    head = asking_to_close(await reader.readuntil(b"\r\n\r\n"))
    from_server, to_server = await asyncio.open_connection(host, port)
    try:
        to_server.write(head)
        directions = [
            asyncio.create_task(_pump(reader, to_server)),
            asyncio.create_task(_pump(from_server, writer)),
        ]
        # The answer is complete, or the client has gone and its answer is to be given up.
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in directions:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)
    finally:
        to_server.close()


async def _pump(source: StreamReader, target: StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()


def asking_to_close(head: bytes) -> bytes:
    """The head of a request, with `Connection: close` in place of what it said about it."""
    request, *headers = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    kept = [line for line in headers if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([request, *kept, b"Connection: close", b"", b""])
