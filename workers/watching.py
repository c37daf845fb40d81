"""What a watcher receives, and the bounded queue between a session's events and one watcher (§5.4)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

from harness.codec import encode
from harness.errors import HarnessError
from harness.frames import AssistantMessageEvent
from harness.operation.events import HarnessEvent, MessageUpdate, event_type

# Why a stream is over. The first four end what one owner says; a follower goes on with the next.
# `slow_reader`: the watcher did not take its events; `draining`: connect to another process;
# `deleted`: there is no such session any more.
EndReason: TypeAlias = Literal["released", "fault", "moved", "draining", "slow_reader", "deleted"]


class NoSuchLane(HarnessError):
    """The session has no lane of that name."""

    def __init__(self, lane: str) -> None:
        super().__init__(f"no lane {lane!r}")
        self.lane = lane


@dataclass(frozen=True, slots=True)
class SnapshotItem:
    """Replaces everything the watcher has. `data` is JSON of a `LaneSnapshot`, or of a
    `SessionSnapshot` when all lanes are watched."""

    data: bytes


@dataclass(frozen=True, slots=True)
class EventItem:
    """One event after the snapshot; `data` is its JSON."""

    type: str
    data: bytes


@dataclass(frozen=True, slots=True)
class EndItem:
    """Nothing follows. `position` is the session's next sequence number when its owner ended."""

    reason: EndReason
    position: int | None = None


StreamItem: TypeAlias = SnapshotItem | EventItem | EndItem


class MessageDelta(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    tag_field="type",
    tag="message_update",
):
    """A `message_update` as a watcher gets it: what the message grew by, not what it grew to."""

    lane: str
    run_id: str
    event: AssistantMessageEvent
    recovery: bool = False


def event_item(event: HarnessEvent) -> EventItem:
    """The event as a watcher gets it."""
    name = event_type(event)
    if isinstance(event, MessageUpdate):
        delta = MessageDelta(
            lane=event.lane, run_id=event.run_id, event=event.event, recovery=event.recovery
        )
        return EventItem(name, encode(delta))
    return EventItem(name, encode(event))


class Feed:
    """Items for one watcher. Bounded: one who does not read is dropped with a reason, and `dropped`
    is called."""

    def __init__(
        self, max_items: int, max_bytes: int, dropped: Callable[[], None] | None = None
    ) -> None:
        self._max_items = max_items
        self._max_bytes = max_bytes
        self._dropped = dropped
        self._items: deque[StreamItem] = deque()
        self._bytes = 0
        self._ready = asyncio.Event()
        self.ended = False

    def push(self, item: SnapshotItem | EventItem) -> None:
        """Add an item; ignored after the end."""
        if self.ended:
            return
        self._bytes += len(item.data)
        # The snapshot itself may be of any size; it is what comes behind it that piles up.
        if isinstance(item, EventItem) and (
            len(self._items) >= self._max_items or self._bytes > self._max_bytes
        ):
            self._items.clear()
            self._bytes = 0
            if self._dropped is not None:
                self._dropped()
            self.end(EndItem("slow_reader"))
            return
        if isinstance(item, SnapshotItem):
            self._bytes = 0
        self._items.append(item)
        self._ready.set()

    def end(self, item: EndItem) -> None:
        """Add the last item; the first end counts."""
        if self.ended:
            return
        self.ended = True
        self._items.append(item)
        self._ready.set()

    async def __aiter__(self) -> AsyncIterator[StreamItem]:
        while True:
            while self._items:
                item = self._items.popleft()
                if isinstance(item, EventItem):
                    self._bytes -= len(item.data)
                yield item
                if isinstance(item, EndItem):
                    return
            self._ready.clear()
            await self._ready.wait()
