"""A client that shows a lane: whatever happens to its connection, it asks again and goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx

from app.client import StreamEvent, read_events

_PAUSE_SECONDS = 0.1


class Watcher:
    """What it would show: `entries` is replaced by each snapshot and added to by each event.

    `attempts` are the numbers of the repeated attempts that it was told of, `ends` the reasons with
    which streams ended in order, `breaks` how many broke.
    """

    def __init__(self, key: str, session: str, urls: Callable[[], list[str]]) -> None:
        self._key = key
        self._path = f"/v1/sessions/{session}/lanes/main/events"
        self._urls = urls
        self.entries: list[str] = []
        self.snapshots = 0
        self.attempts: list[int] = []
        self.ends: list[str] = []
        self.breaks = 0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[Watcher]:
        """Watch while the block runs."""
        task = asyncio.ensure_future(self._watch())
        try:
            yield self
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            # The newest API process: the others are on their way out.
            urls = self._urls()
            if urls:
                async with httpx.AsyncClient(
                    base_url=urls[-1], headers={"Authorization": f"Bearer {self._key}"}
                ) as client:
                    try:
                        async with contextlib.aclosing(read_events(client, self._path)) as events:
                            async for event in events:
                                self._take(event)
                    except httpx.HTTPError:
                        self.breaks += 1
            await asyncio.sleep(_PAUSE_SECONDS)

    def _take(self, event: StreamEvent) -> None:
        match event.name:
            case "snapshot":
                self.snapshots += 1
                self.entries = [entry["id"] for entry in event.data["transcript"]]
            case "entry_added":
                # It does not look for duplicates: there must be none.
                self.entries.append(event.data["entry"]["id"])
            case "retry_scheduled" | "retry_start":
                self.attempts.append(event.data["attempt"])
            case "end":
                self.ends.append(event.data["reason"])
            case _:
                pass
