"""The endpoint that other hosts reach this one at: run a command, watch a session. Never exposed (design §6).

It also answers scrapes, `GET /metrics`, which is all that it does for who does not sign.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Protocol

import msgspec
import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from harness.context import BACKGROUND, Context
from harness.errors import (
    HarnessClosed,
    HarnessError,
    HarnessFault,
    SessionNotFound,
    StorageCorrupt,
)
from harness.session.once import OnceUnknown
from harness.telemetry_otel import Tracing
from workers.commands import Accept, Command, Reply, decode_command, encode_command, encode_reply
from workers.execute import NeedsDriver
from workers.exposition import CONTENT_TYPE
from workers.internal_auth import HOST, ClusterSecret
from workers.live import LiveSession, Retired
from workers.taking import NoRoom
from workers.tracing import TRACEPARENT, context_below
from workers.watching import (
    EndItem,
    EndReason,
    EventItem,
    Feed,
    NoSuchLane,
    SnapshotItem,
    StreamItem,
)

logger = logging.getLogger(__name__)

EXECUTE = "/internal/execute"
TAKE = "/internal/take"
WATCH = "/internal/watch"
METRICS = "/metrics"

# Answers of the endpoint beside 200.
UNAUTHORIZED = 403
NO_SESSION = 404
NO_LANE = 410
NOT_ALLOWED = 405
NOT_OWNER = 409
WRONG_HOST = 421
NO_ROOM = 429
FAULTED = 500

HEARTBEAT_SECONDS = 5.0
# A worker that takes longer than this to accept something new is not the one to ask: whoever offered it
# goes elsewhere then, so that it must not be accepted any later.
TAKE_SECONDS = 2.0
# Longer than the others keep an idle connection: whoever ends one may do so as a request is on its way.
_KEEP_ALIVE_SECONDS = 75

# Any: pyright cannot name a literal type as type[T]; the decoder takes it.
_REASON: Any = EndReason


class WatchBody(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """What to watch; no lane means all of them."""

    tenant_id: str
    session_id: str
    lane: str | None = None


class Owner(Protocol):
    """What this process owns."""

    @property
    def host_id(self) -> str | None:
        """This incarnation."""
        ...

    def get(self, tenant_id: str, session_id: str) -> LiveSession | None:
        """The session, if it is owned here."""
        ...

    async def take(
        self, tenant_id: str, session_id: str, command: Accept, context: Context, *, until: int
    ) -> Reply:
        """Accept an operation whoever owned the session before (see `Taking.take`)."""
        ...


class InternalServer:
    """Listens on a port of its own. Requests are signed, limited in size and in time."""

    def __init__(
        self,
        owner: Owner,
        secret: ClusterSecret,
        *,
        address: tuple[str, int],
        max_bytes: int,
        command_seconds: float,
        tracing: Tracing,
        metrics: Callable[[], Awaitable[bytes]],
    ) -> None:
        self._owner = owner
        self._secret = secret
        self._max_bytes = max_bytes
        self._command_seconds = command_seconds
        self._tracing = tracing
        self._metrics = metrics
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        # Named, as at the public door: else asyncio leaves Nagle's algorithm on.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.bind(address)
        except BaseException:
            self._socket.close()
            raise
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            proxy_headers=False,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=2,
        )
        self._server = _QuietServer(config)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to listen."""
        self._task = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._socket])
        )
        while not self._server.started and not self._task.done():  # noqa: ASYNC110 -- the server has no event for it
            await asyncio.sleep(0.001)
        if self._task.done():
            await self._task

    async def close(self) -> None:
        """Stop listening and end what is under way."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.wait([self._task])
        self._socket.close()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = await self._answer(request)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.method == "GET" and request.url.path == METRICS:
            return Response(await self._metrics(), media_type=CONTENT_TYPE)
        try:
            body = await self._body(request)
        except ClientDisconnect:
            return Response(status_code=400)
        if body is None:
            return Response(status_code=413)
        if not self._secret.check(request.url.path, request.headers, body):
            logger.warning("refused an internal request without a valid signature")
            return Response(status_code=UNAUTHORIZED)
        proof = self._secret.prove(request.headers)
        if request.headers.get(HOST) != self._owner.host_id:
            return Response(status_code=WRONG_HOST, headers=proof)
        until = self._secret.signed_at(request.headers) + int(TAKE_SECONDS * 1000)
        routes: dict[str, Callable[[bytes, Context], Awaitable[Response]]] = {
            EXECUTE: self._execute,
            TAKE: lambda body, context: self._take(body, context, until),
            WATCH: self._watch,
        }
        answer = routes.get(request.url.path)
        if answer is None or request.method != "POST":
            return Response(status_code=NOT_ALLOWED, headers=proof)
        context = context_below(self._tracing, request.headers.get(TRACEPARENT))
        response = await _outcome(answer(body, context))
        for name, value in proof.items():
            response.headers[name] = value
        return response

    async def _body(self, request: Request) -> bytes | None:
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > self._max_bytes:
                return None
            parts.append(part)
        return b"".join(parts)

    def _live(self, tenant_id: str, session_id: str) -> LiveSession:
        live = self._owner.get(tenant_id, session_id)
        if live is None:
            raise Retired
        return live

    async def _execute(self, body: bytes, context: Context) -> Response:
        tenant_id, session_id, command = decode_execution(body)
        live = self._live(tenant_id, session_id)
        async with asyncio.timeout(self._command_seconds):
            reply: Reply = await live.execute(command, context)
        return Response(encode_reply(reply), media_type="application/octet-stream")

    async def _take(self, body: bytes, context: Context, until: int) -> Response:
        tenant_id, session_id, command = decode_execution(body)
        if not isinstance(command, Accept):
            raise StorageCorrupt("only new operations can be taken")
        async with asyncio.timeout(self._command_seconds):
            reply = await self._owner.take(tenant_id, session_id, command, context, until=until)
        return Response(encode_reply(reply), media_type="application/octet-stream")

    async def _watch(self, body: bytes, _context: Context) -> Response:
        asked = msgspec.json.decode(body, type=WatchBody)
        live = self._live(asked.tenant_id, asked.session_id)
        feed = await live.watch(asked.lane, BACKGROUND)
        return StreamingResponse(_lines(live, feed), media_type="application/octet-stream")


async def _outcome(answering: Awaitable[Response]) -> Response:
    """The answer, or what the error says that came instead."""
    try:
        return await answering
    except (msgspec.MsgspecError, StorageCorrupt) as error:
        return Response(str(error), status_code=422)
    except SessionNotFound:
        return Response(status_code=NO_SESSION)
    except NoSuchLane:
        return Response(status_code=NO_LANE)
    except NoRoom:
        return Response(status_code=NO_ROOM)
    except (Retired, NeedsDriver, OnceUnknown):
        # Nothing was done: whoever asked looks again.
        return Response(status_code=NOT_OWNER)
    except (HarnessFault, HarnessClosed, TimeoutError) as error:
        return Response(str(error), status_code=FAULTED)
    except Exception:
        # With a proof, so that whoever asked knows that it was this host, which may have done it.
        logger.exception("an internal request failed")
        return Response("an unexpected error", status_code=FAULTED)


class _QuietServer(uvicorn.Server):
    """Leaves signals to the process that it runs in."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def _lines(live: LiveSession, feed: Feed) -> AsyncGenerator[bytes]:
    """Items as lines, with a heartbeat when there is nothing to say."""
    items = aiter(feed)
    coming: asyncio.Future[StreamItem] | None = None
    try:
        while True:
            coming = coming or asyncio.ensure_future(anext(items))
            done, _ = await asyncio.wait([coming], timeout=HEARTBEAT_SECONDS)
            if not done:
                yield b"H\n"
                continue
            item, coming = coming.result(), None
            yield encode_item(item)
            if isinstance(item, EndItem):
                return
    finally:
        live.unwatch(feed)
        if coming is not None:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, HarnessError, StopAsyncIteration):
                await coming


def encode_execution(tenant_id: str, session_id: str, command: Command) -> bytes:
    """A command and the session it is for: two lines of ids, then the command's JSON."""
    return f"{tenant_id}\n{session_id}\n".encode() + encode_command(command)


def decode_execution(body: bytes) -> tuple[str, str, Command]:
    """Raises `StorageCorrupt` when the body is something else."""
    parts = body.split(b"\n", 2)
    if len(parts) != 3 or not parts[0].isascii() or not parts[1].isascii():
        raise StorageCorrupt("the body is no command")
    tenant_id, session_id, command = parts
    return tenant_id.decode(), session_id.decode(), decode_command(command)


def encode_item(item: StreamItem) -> bytes:
    """One line. JSON has no line break in it."""
    match item:
        case SnapshotItem(data=data):
            return b"S" + data + b"\n"
        case EventItem(type=name, data=data):
            return b"E" + name.encode() + b" " + data + b"\n"
        case EndItem(reason=reason, position=position):
            return f"X{reason} {'' if position is None else position}\n".encode()


def decode_item(line: bytes) -> StreamItem | None:
    """The item of a line; None for a heartbeat. Raises `ValueError` (as `msgspec.ValidationError`
    too) for anything else."""
    kind, rest = line[:1], line[1:]
    if kind == b"S":
        return SnapshotItem(rest)
    if kind == b"E":
        name, _, data = rest.partition(b" ")
        return EventItem(name.decode(), data)
    if kind == b"X":
        reason, _, position = rest.partition(b" ")
        known: EndReason = msgspec.convert(reason.decode(), type=_REASON)
        return EndItem(known, int(position) if position else None)
    if kind == b"H":
        return None
    raise ValueError("not an item")
