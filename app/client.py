"""Reads event streams of the HTTP service, for programs on the other side of it."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream: `snapshot`, `end`, or the type of something that happened."""

    name: str
    # Any: JSON, whose shape the OpenAPI document gives by name.
    data: dict[str, Any]


async def read_events(client: httpx.AsyncClient, path: str) -> AsyncGenerator[StreamEvent]:
    """The events of one connection until it ends. Raises `httpx.HTTPError` when it breaks, which
    means nothing to the work that is watched: connect again and begin with the new snapshot."""
    async with client.stream("GET", path, timeout=httpx.Timeout(10.0, read=60.0)) as response:
        response.raise_for_status()
        name = ""
        pieces: list[str] = []
        async for line in response.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                pieces.append(value)
            elif not line and pieces:
                # The standard library keeps lone surrogates, which tools do put out.
                yield StreamEvent(name, json.loads("\n".join(pieces)))
                name, pieces = "", []
