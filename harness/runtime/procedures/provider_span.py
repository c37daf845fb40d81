"""The span of each request to a provider, from its admission to its end, free of content (§5.8)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable

from harness.execution.assistant import ResponseCapture
from harness.frames import AssistantMessageEvent, DoneEvent, ErrorEvent
from harness.messages import AssistantMessage
from harness.models.protocol import AssistantStream, Model
from harness.runtime.procedures.base import DrivePass
from harness.telemetry import (
    NOOP_TELEMETRY,
    AttributeName,
    Attributes,
    AttributeValue,
    Span,
    TelemetryContext,
)

# A stop reason as the vocabulary of spans spells it, where that differs from the durable message.
_SPELLED = {"toolUse": "tool_use"}


def admit_stream(
    p: DrivePass,
    model: Model,
    start: Callable[[TelemetryContext], AssistantStream],
    capture: ResponseCapture,
    *,
    poll: bool = False,
    deferred: bool = False,
) -> AssistantStream:
    """Admit and start one provider request inside its span; raises what the gate raises.

    What is refused at the gate was never asked, and has no span. `capture` hears of the HTTP status.
    """

    def begin() -> AssistantStream:
        if p.context.telemetry is NOOP_TELEMETRY:
            return start(NOOP_TELEMETRY)
        operation = "fetch_deferred" if poll else "stream"
        span = _start(p, model, operation, deferred=deferred or poll)
        try:
            stream = start(span.context)
        except BaseException as error:
            span.end(error=type(error).__name__)
            raise
        return _Observed(p, span, capture).events(stream)

    return p.gate.admit(begin)


async def traced_cancel(
    p: DrivePass, model: Model, cancel: Callable[[TelemetryContext], Awaitable[None]]
) -> None:
    """Ask a provider to stop background work, inside a span; a failure goes no further (§4.6)."""
    span = _start(p, model, "cancel_deferred", deferred=True)
    try:
        await cancel(span.context)
    except Exception as error:  # noqa: BLE001 -- best effort, reported in telemetry only
        span.end(error=type(error).__name__)
    except BaseException as error:
        span.end(error=type(error).__name__)
        raise
    else:
        span.end()


def _start(p: DrivePass, model: Model, operation: str, *, deferred: bool) -> Span:
    attributes: Attributes = {
        **p.identity,
        "pi.ai.operation": operation,
        "pi.ai.provider": model.provider,
        "pi.ai.model": model.model_id,
        "pi.ai.api": model.api,
        "pi.ai.deferred": deferred,
    }
    return p.context.telemetry.start("pi.ai.request", attributes)


class _Observed:
    """Counts what comes of one request, for the end of its span."""

    def __init__(self, p: DrivePass, span: Span, capture: ResponseCapture) -> None:
        self._clock = p.core.environment.clock
        self._span = span
        self._capture = capture
        self._begun = self._clock.monotonic()
        self._chunks = 0
        self._first: float | None = None

    async def events(self, stream: AssistantStream) -> AsyncGenerator[AssistantMessageEvent]:
        settled: AssistantMessage | None = None
        error: str | None = "incomplete"
        try:
            async for event in stream:
                if isinstance(event, DoneEvent | ErrorEvent):
                    settled = event.message
                    failed = isinstance(event, ErrorEvent)
                    error = (settled.error_kind or settled.stop_reason) if failed else None
                else:
                    self._chunks += 1
                    if self._first is None:
                        self._first = self._clock.monotonic() - self._begun
                yield event
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            self._span.end(self._result(settled), error=error)

    def _result(self, message: AssistantMessage | None) -> Attributes:
        found: dict[AttributeName, AttributeValue] = {"pi.ai.stream.chunk_count": self._chunks}
        if self._first is not None:
            found["pi.ai.stream.time_to_first_chunk_ms"] = round(self._first * 1000)
        if self._capture.metadata.status is not None:
            found["pi.ai.http.status_code"] = self._capture.metadata.status
        if message is not None:
            usage = message.usage
            reason = message.stop_reason
            found["pi.ai.response.stop_reason"] = _SPELLED.get(reason, reason)
            found["pi.ai.usage.input_tokens"] = usage.input
            found["pi.ai.usage.output_tokens"] = usage.output
            found["pi.ai.usage.cache_read_tokens"] = usage.cache_read
            found["pi.ai.usage.cache_write_tokens"] = usage.cache_write
            found["pi.ai.usage.total_tokens"] = usage.total_tokens
            found["pi.ai.usage.cost"] = usage.cost.total
        return found
