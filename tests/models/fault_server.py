"""A real HTTP server on loopback that answers as it is told: statuses, pauses, cuts, whole wires.

Each request takes the next of the queued replies. A reply is played byte by byte over a socket, so
that what the adapter meets (headers, chunks, a reset in the middle) is what it would meet outside.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Pause:
    """Hold the stream until `event` is set."""

    event: asyncio.Event


@dataclass(frozen=True)
class Cut:
    """Reset the connection here."""


@dataclass(frozen=True)
class Close:
    """End the body here in good order, before the wire's own end."""


@dataclass(frozen=True)
class Reply:
    """One answer: a status with a JSON body, or a stream of server-sent events."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: object = None
    events: Sequence[object] | None = None


@dataclass
class Request:
    """What the server was asked. `gone` is set when the client closed before the answer was over."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class FaultServer:
    """The replies to give and the requests that came."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.requests: list[Request] = []
        self.arrived = asyncio.Condition()
        self.port = 0

    @property
    def url(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self.port}"

    def will(self, *replies: Reply) -> None:
        """Queue replies."""
        self.replies.extend(replies)

    def reply_to(self, request: Request) -> Reply:
        """The answer to a request."""
        return self.replies.pop(0) if self.replies else Reply(500, body={"error": "no reply left"})

    async def request(self, number: int = 0) -> Request:
        """Wait for a request by its number."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.requests) > number)
        return self.requests[number]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        try:
            while await self._one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {
            name.strip().lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines if line)
        }
        raw = await reader.readexactly(int(headers.get("content-length", "0")))
        body: Any = None
        if raw:
            try:
                body = json.loads(raw)
            except ValueError:
                body = raw
        request = Request(method, path, headers, body)
        async with self.arrived:
            self.requests.append(request)
            self.arrived.notify_all()
        reply = self.reply_to(request)
        if reply.events is None:
            return await self._whole(writer, reply)
        return await self._stream(reader, writer, reply, request)

    async def _whole(self, writer: asyncio.StreamWriter, reply: Reply) -> bool:
        if isinstance(reply.body, str):
            payload, kind = reply.body.encode(), "text/plain"
        else:
            payload, kind = json.dumps(reply.body).encode(), "application/json"
        extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        writer.write(
            f"HTTP/1.1 {reply.status} X\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(payload)}\r\n{extra}\r\n".encode()
        )
        writer.write(payload)
        await writer.drain()
        return True

    async def _stream(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        reply: Reply,
        request: Request,
    ) -> bool:
        extra = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        writer.write(
            f"HTTP/1.1 {reply.status} X\r\ncontent-type: text/event-stream\r\n"
            f"transfer-encoding: chunked\r\n{extra}\r\n".encode()
        )
        await writer.drain()
        assert reply.events is not None
        for event in reply.events:
            if isinstance(event, Pause):
                if not await _or_gone(event.event, reader):
                    request.gone.set()
                    return False
            elif isinstance(event, Cut):
                _reset(writer)
                return False
            elif isinstance(event, Close):
                break
            else:
                await _chunk(writer, event)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


async def _chunk(writer: asyncio.StreamWriter, event: object) -> None:
    data = event.encode() if isinstance(event, str) else _sse(event)
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


def _sse(event: object) -> bytes:
    kind = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
    # ASCII escapes let lone halves of characters onto the wire, as JSON allows.
    return f"{kind}data: {json.dumps(event)}\n\n".encode()


async def _or_gone(event: asyncio.Event, reader: asyncio.StreamReader) -> bool:
    waiting = asyncio.create_task(event.wait())
    # A client that is still there sends nothing while it reads.
    leaving = asyncio.create_task(reader.read(1))
    try:
        await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
        return waiting.done()
    finally:
        for task in (waiting, leaving):
            task.cancel()
        await asyncio.gather(waiting, leaving, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


@asynccontextmanager
async def fault_server() -> AsyncIterator[FaultServer]:
    """A server for the length of the block."""
    server = FaultServer()
    async with serving(server):
        yield server


@asynccontextmanager
async def serving(server: FaultServer) -> AsyncIterator[None]:
    """Let the server listen for the length of the block."""
    running: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        running.add(task)
        task.add_done_callback(running.discard)
        # Cancelled at the end of the block, which is no news to the stream's own callback.
        with suppress(asyncio.CancelledError):
            await server.serve(reader, writer)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield
    finally:
        listening.close()
        for task in list(running):
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        await listening.wait_closed()
