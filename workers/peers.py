"""Asks other hosts: the client side of the internal endpoint (design §6)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import aiohttp
import msgspec

from harness.codec import encode
from harness.context import Context
from harness.errors import HarnessError, SessionNotFound
from storage_pg.open_operations import SessionOwner
from workers.commands import Accept, Command, Reply, decode_reply
from workers.internal_auth import ClusterSecret
from workers.internal_http import (
    EXECUTE,
    FAULTED,
    HEARTBEAT_SECONDS,
    NO_LANE,
    NO_ROOM,
    NO_SESSION,
    NOT_ALLOWED,
    NOT_OWNER,
    TAKE,
    TAKE_SECONDS,
    WATCH,
    WRONG_HOST,
    WatchBody,
    decode_item,
    encode_execution,
)
from workers.tracing import TRACEPARENT
from workers.watching import NoSuchLane, StreamItem

_CONNECT_SECONDS = 2.0
# A stream without even a heartbeat for this long is broken.
_SILENCE_SECONDS = 3 * HEARTBEAT_SECONDS
_MOST_CONNECTIONS = 2_000
# Of hosts that watch for others, each stream one connection: what bounds them is who watches.
_ANY_NUMBER = 0
_KEEP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class NotThere:
    """The host does not own the session, or is gone: look for the owner again. `unknown`: the command
    may have been executed all the same. `full`: it has no room for more at the moment."""

    reason: str
    unknown: bool = False
    full: bool = False


class PeerRefused(HarnessError):
    """Another host does not take our requests: the cluster secret differs, or versions do."""


Asked: TypeAlias = Reply | NotThere


class Peers:
    """Connections to the other hosts, kept open between requests."""

    def __init__(self, secret: ClusterSecret, command_seconds: float) -> None:
        self._secret = secret
        self._seconds = {EXECUTE: command_seconds + 5, TAKE: TAKE_SECONDS}
        # By how many connections they may have: streams take none that commands need.
        self._sessions: dict[int, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        """Give the connections back."""
        while self._sessions:
            _, session = self._sessions.popitem()
            await session.close()

    def _client(self, most: int) -> aiohttp.ClientSession:
        # Made where a loop runs, which it belongs to.
        if most not in self._sessions:
            self._sessions[most] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=most, keepalive_timeout=_KEEP_SECONDS),
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._sessions[most]

    async def execute(
        self,
        owner: SessionOwner,
        tenant_id: str,
        session_id: str,
        command: Command,
        context: Context,
    ) -> Asked:
        """Have the owner run a command, within the caller's trace. Raises `SessionNotFound` and
        `PeerRefused`."""
        return await self._send(EXECUTE, owner, tenant_id, session_id, command, context)

    async def take(
        self,
        worker: SessionOwner,
        tenant_id: str,
        session_id: str,
        command: Accept,
        context: Context,
    ) -> Asked:
        """Have a worker accept an operation and drive it, if it has room and nobody else owns the
        session. Raises what `execute` raises."""
        return await self._send(TAKE, worker, tenant_id, session_id, command, context)

    async def _send(
        self,
        path: str,
        owner: SessionOwner,
        tenant_id: str,
        session_id: str,
        command: Command,
        context: Context,
    ) -> Asked:
        if owner.url is None:
            return NotThere("the owner has no address")
        body = encode_execution(tenant_id, session_id, command)
        headers = self._secret.sign(path, owner.host_id, body)
        traceparent = context.telemetry.traceparent
        # A header beside the signed body: hosts of any version take the command without it.
        sent = headers if traceparent is None else {**headers, TRACEPARENT: traceparent}
        timeout = aiohttp.ClientTimeout(
            total=self._seconds[path], connect=_CONNECT_SECONDS, sock_connect=_CONNECT_SECONDS
        )
        try:
            async with self._client(_MOST_CONNECTIONS).post(
                owner.url + path, data=body, headers=sent, timeout=timeout, allow_redirects=False
            ) as response:
                status, said, told = response.status, response.headers, await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            return NotThere(f"no connection: {error}")
        except (aiohttp.ClientError, TimeoutError) as error:
            return NotThere(f"{type(error).__name__}: {error}", unknown=True)
        if not self._secret.proven(headers, said):
            return self._stranger(status)
        if status == 200:
            return decode_reply(told)
        return self._refusal(status, session_id, told.decode("utf-8", "replace"))

    async def watch(
        self, owner: SessionOwner, tenant_id: str, session_id: str, lane: str | None
    ) -> AsyncGenerator[StreamItem | NotThere]:
        """What the owner shows a watcher. `NotThere` comes last, when the owner does not show or
        stopped showing without saying why. Raises `SessionNotFound`, `NoSuchLane`, `PeerRefused`."""
        if owner.url is None:
            yield NotThere("the owner has no address")
            return
        body = encode(WatchBody(tenant_id=tenant_id, session_id=session_id, lane=lane))
        headers = self._secret.sign(WATCH, owner.host_id, body)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENCE_SECONDS
        )
        try:
            async with self._client(_ANY_NUMBER).post(
                owner.url + WATCH,
                data=body,
                headers=headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                if not self._secret.proven(headers, response.headers):
                    yield self._stranger(response.status)
                    return
                if response.status == NO_LANE:
                    raise NoSuchLane(lane or "")
                if response.status != 200:
                    text = (await response.read()).decode("utf-8", "replace")
                    yield self._refusal(response.status, session_id, text)
                    return
                async with aclosing(_lines(response)) as lines:
                    async for line in lines:
                        item = decode_item(line)
                        if item is not None:
                            yield item
        except (aiohttp.ClientError, TimeoutError, ValueError, msgspec.ValidationError) as error:
            yield NotThere(f"{type(error).__name__}: {error}")
        else:
            yield NotThere("the stream ended")

    def _stranger(self, status: int) -> NotThere:
        if status == 403:
            raise PeerRefused("another host refused our signature: LANEWAY_CLUSTER_SECRET differs")
        # Somebody between the hosts who gave up waiting says nothing of what was done behind it.
        unknown = status >= 500
        return NotThere(f"somebody else answers at that address ({status})", unknown=unknown)

    def _refusal(self, status: int, session_id: str, text: str) -> NotThere:
        if status == NO_SESSION:
            raise SessionNotFound(session_id)
        if status in (NOT_OWNER, WRONG_HOST):
            return NotThere("it does not own the session")
        if status == NO_ROOM:
            return NotThere("it has no room", full=True)
        if status == NOT_ALLOWED:
            return NotThere("it is of a release that cannot do this")
        if status == FAULTED:
            return NotThere(f"it failed: {text}", unknown=True)
        raise PeerRefused(f"another host answered {status}: {text}")


async def _lines(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    begun: list[bytes] = []
    async for part in response.content.iter_any():
        first, *more = part.split(b"\n")
        begun.append(first)
        for following in more:
            yield b"".join(begun)
            begun = [following]
