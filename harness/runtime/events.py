"""Event delivery: one ordered tail, recipients bound at publication, listeners isolated (§5.5)."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

import msgspec

from harness.context import Context
from harness.operation.events import HandlerError, HarnessEvent, event_type
from harness.session.line import observe
from harness.telemetry import NOOP_TELEMETRY, AttributeName, AttributeValue

EventListener: TypeAlias = Callable[[Any, Context], Awaitable[None] | None]
Wanted: TypeAlias = Callable[[HarnessEvent], bool]


class Subscription:
    """One registered listener and what it wants to hear."""

    __slots__ = ("listener", "wants")

    def __init__(self, listener: EventListener, wants: Wanted) -> None:
        self.listener = listener
        self.wants = wants


class _Batch:
    __slots__ = ("context", "deliveries", "done")

    def __init__(
        self,
        deliveries: list[tuple[Subscription, HarnessEvent]],
        context: Context,
        done: asyncio.Future[None],
    ) -> None:
        self.deliveries = deliveries
        self.context = context
        self.done = done


class EventBus:
    """Publishes batches in order. Publication is synchronous; only delivery awaits listeners."""

    def __init__(self) -> None:
        self._subscriptions: list[Subscription] = []
        self._tail: deque[_Batch] = deque()
        self._worker: asyncio.Task[None] | None = None

    def on(self, type_: type[HarnessEvent] | str, listener: EventListener) -> Callable[[], None]:
        """Listen to one type of event on the whole harness ("*" for all). Returns the remover.

        Listeners observe: they may read, but must not call state-changing harness methods.
        """
        if isinstance(type_, str):
            return self.subscribe(
                listener, lambda event: type_ == "*" or event_type(event) == type_
            )
        return self.subscribe(listener, lambda event: isinstance(event, type_))

    def subscribe(self, listener: EventListener, wants: Wanted) -> Callable[[], None]:
        """Listen to every event that `wants` accepts."""
        subscription = Subscription(listener, wants)
        self._subscriptions.append(subscription)

        def remove() -> None:
            if subscription in self._subscriptions:
                self._subscriptions.remove(subscription)

        return remove

    @property
    def listened(self) -> bool:
        """Whether anybody listens at all."""
        return bool(self._subscriptions)

    def emit_batch(
        self, events: Sequence[HarnessEvent], context: Context
    ) -> asyncio.Future[None] | None:
        """Publish a batch: bind recipients now, deliver in order later. None: nobody listens."""
        if not self._subscriptions:
            return None
        deliveries = [
            (subscription, event)
            for event in events
            for subscription in self._subscriptions
            if subscription.wants(event)
        ]
        if not deliveries:
            return None
        loop = asyncio.get_running_loop()
        batch = _Batch(deliveries, context, loop.create_future())
        self._tail.append(batch)
        if self._worker is None:
            self._worker = loop.create_task(self._deliver())
        return batch.done

    async def emit(self, events: Sequence[HarnessEvent], context: Context) -> None:
        """Publish a batch and wait until its listeners are done."""
        delivery = self.emit_batch(events, context)
        if delivery is not None:
            await asyncio.shield(delivery)

    async def drained(self) -> None:
        """Return when everything published so far is delivered."""
        while self._worker is not None:
            await asyncio.wait([self._worker])

    async def _deliver(self) -> None:
        while self._tail:
            batch = self._tail.popleft()
            for subscription, event in batch.deliveries:
                await self._call(subscription, event, batch.context)
            if not batch.done.cancelled():
                batch.done.set_result(None)
        self._worker = None

    async def _call(
        self, subscription: Subscription, event: HarnessEvent, context: Context
    ) -> None:
        try:
            if context.telemetry is not NOOP_TELEMETRY:
                await self._traced(subscription, event, context)
                return
            outcome = subscription.listener(isolated(event), context)
            if inspect.isawaitable(outcome):
                await outcome
        except Exception as error:  # noqa: BLE001 -- a listener must not disturb the work it observes
            if isinstance(event, HandlerError):
                return
            report = HandlerError(
                error=f"{type(error).__name__}: {error}",
                stack=traceback.format_exc(),
                kind="event",
                name=event_type(event),
                lane=getattr(event, "lane", None),
            )
            delivery = self.emit_batch((report,), context)
            if delivery is not None:
                observe(delivery)

    async def _traced(
        self, subscription: Subscription, event: HarnessEvent, context: Context
    ) -> None:
        attributes: dict[AttributeName, AttributeValue] = {"pi.event.type": event_type(event)}
        lane: str | None = getattr(event, "lane", None)
        if lane is not None:
            attributes["pi.lane.name"] = lane
        span = context.telemetry.start("pi.harness.event_handler", attributes)
        try:
            outcome = subscription.listener(isolated(event), context)
            if inspect.isawaitable(outcome):
                await outcome
        except BaseException as error:
            span.end(error=type(error).__name__)
            raise
        span.end()


def isolated(value: Any) -> Any:
    """A copy in which everything mutable (JSON objects and arrays) is the receiver's own.

    Frozen structs and tuples without such parts are returned as they are.
    """
    if isinstance(value, dict):
        mapping = cast("dict[str, Any]", value)
        return {key: isolated(item) for key, item in mapping.items()}
    if isinstance(value, list):
        return [isolated(item) for item in cast("list[Any]", value)]
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        copies = tuple(isolated(item) for item in items)
        return items if all(a is b for a, b in zip(copies, items, strict=True)) else copies
    if isinstance(value, msgspec.Struct):
        changes: dict[str, Any] = {}
        for name in value.__struct_fields__:
            item = getattr(value, name)
            if isinstance(item, str | int | float | None):
                continue
            copy = isolated(item)
            if copy is not item:
                changes[name] = copy
        return msgspec.structs.replace(value, **changes) if changes else value
    return value
