"""Asks other hosts: the client side of the internal endpoint (design §6)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias

import httpx
import msgspec

from harness.codec import encode
from harness.context import Context
from harness.errors import HarnessError, SessionNotFound
from storage_pg.open_operations import SessionOwner
from workers.commands import Command, Reply, decode_reply
from workers.internal_auth import ClusterSecret
from workers.internal_http import (
    EXECUTE,
    FAULTED,
    HEARTBEAT_SECONDS,
    NO_LANE,
    NO_SESSION,
    NOT_OWNER,
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


@dataclass(frozen=True, slots=True)
class NotThere:
    """The host does not own the session, or is gone: look for the owner again. `unknown`: the command
    may have been executed all the same."""

    reason: str
    unknown: bool = False


class PeerRefused(HarnessError):
    """Another host does not take our requests: the cluster secret differs, or versions do."""


Asked: TypeAlias = Reply | NotThere


class Peers:
    """Connections to the other hosts, kept open between requests."""

    def __init__(self, secret: ClusterSecret, command_seconds: float) -> None:
        self._secret = secret
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(command_seconds + 5, connect=_CONNECT_SECONDS),
            limits=httpx.Limits(
                max_connections=_MOST_CONNECTIONS,
                max_keepalive_connections=100,
                keepalive_expiry=30,
            ),
            trust_env=False,
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

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
        if owner.url is None:
            return NotThere("the owner has no address")
        body = encode_execution(tenant_id, session_id, command)
        headers = self._secret.sign(EXECUTE, owner.host_id, body)
        traceparent = context.telemetry.traceparent
        # A header beside the signed body: hosts of any version take the command without it.
        sent = headers if traceparent is None else {**headers, TRACEPARENT: traceparent}
        try:
            response = await self._client.post(owner.url + EXECUTE, content=body, headers=sent)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
            return NotThere(f"no connection: {error}")
        except httpx.HTTPError as error:
            return NotThere(f"{type(error).__name__}: {error}", unknown=True)
        if not self._secret.proven(headers, response.headers):
            return self._stranger(response.status_code)
        if response.status_code == 200:
            return decode_reply(response.content)
        return self._refusal(response.status_code, session_id, response.text)

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
        timeout = httpx.Timeout(_SILENCE_SECONDS, connect=_CONNECT_SECONDS)
        request = self._client.build_request(
            "POST", owner.url + WATCH, content=body, headers=headers, timeout=timeout
        )
        try:
            response = await self._client.send(request, stream=True)
            try:
                if not self._secret.proven(headers, response.headers):
                    yield self._stranger(response.status_code)
                    return
                if response.status_code == NO_LANE:
                    raise NoSuchLane(lane or "")
                if response.status_code != 200:
                    text = (await response.aread()).decode("utf-8", "replace")
                    yield self._refusal(response.status_code, session_id, text)
                    return
                async with aclosing(_lines(response)) as lines:
                    async for line in lines:
                        item = decode_item(line)
                        if item is not None:
                            yield item
            finally:
                await response.aclose()
        except (httpx.HTTPError, ValueError, msgspec.ValidationError) as error:
            yield NotThere(f"{type(error).__name__}: {error}")
        else:
            yield NotThere("the stream ended")

    def _stranger(self, status: int) -> NotThere:
        if status == 403:
            raise PeerRefused("another host refused our signature: LANEWAY_CLUSTER_SECRET differs")
        return NotThere("somebody else answers at that address")

    def _refusal(self, status: int, session_id: str, text: str) -> NotThere:
        if status == NO_SESSION:
            raise SessionNotFound(session_id)
        if status in (NOT_OWNER, WRONG_HOST):
            return NotThere("it does not own the session")
        if status == FAULTED:
            return NotThere(f"it failed: {text}", unknown=True)
        raise PeerRefused(f"another host answered {status}: {text}")


async def _lines(response: httpx.Response) -> AsyncGenerator[bytes]:
    begun: list[bytes] = []
    async for part in response.aiter_raw():
        first, *more = part.split(b"\n")
        begun.append(first)
        for following in more:
            yield b"".join(begun)
            begun = [following]
