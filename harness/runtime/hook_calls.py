"""One call of one registered hook handler, below a span of its own (§5.6, §5.8)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from harness.context import Context
from harness.telemetry import NOOP_TELEMETRY, AttributeName, AttributeValue

# Any: each hook has its own event and result type; the pipelines check what they consume.
HookHandler: TypeAlias = Callable[[Any, Context], "Awaitable[Any] | Any"]

HookResult: TypeAlias = Literal["completed", "skipped", "blocked"]


class Told(Protocol):
    """What every hook event says."""

    @property
    def lane(self) -> str:
        """The lane's name."""
        ...

    @property
    def run_id(self) -> str:
        """The operation's id."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Registration:
    """One registration, equal to itself only: a handler may be registered more than once."""

    handler: HookHandler
    id: str | None

    async def call(
        self, name: str, event: Told, context: Context, result_of: Callable[[Any], HookResult]
    ) -> Any:
        """What the handler returns; raises what it raises. `result_of` names the result for the span."""
        if context.telemetry is NOOP_TELEMETRY:
            return await self._called(event, context)
        attributes: dict[AttributeName, AttributeValue] = {
            "pi.lane.name": event.lane,
            "pi.operation.id": event.run_id,
            "pi.hook.name": name,
        }
        if self.id is not None:
            attributes["pi.hook.registration_id"] = self.id
        span = context.telemetry.start("pi.harness.hook", attributes)
        try:
            result = await self._called(event, context.with_telemetry(span.context))
        except BaseException as error:
            span.end({"pi.hook.outcome": "failed"}, error=type(error).__name__)
            raise
        span.end({"pi.hook.outcome": result_of(result)})
        return result

    async def _called(self, event: Told, context: Context) -> Any:
        result = self.handler(event, context)
        return await result if inspect.isawaitable(result) else result
