"""The span of one provider request: from its admission to the end of its stream, free of content (§5.8)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from harness.frames import AssistantMessageEvent, DoneEvent, ErrorEvent
from harness.messages import AssistantMessage
from harness.models.protocol import AssistantStream, Model
from harness.runtime.procedures.base import DrivePass
from harness.telemetry import NOOP_TELEMETRY, Attributes, Span, TelemetryContext


def admit_stream(
    p: DrivePass,
    model: Model,
    kind: str,
    start: Callable[[TelemetryContext], AssistantStream],
) -> AssistantStream:
    """Admit and start one provider request inside its span; raises what the gate raises."""
    if p.context.telemetry is NOOP_TELEMETRY:
        return p.gate.admit(lambda: start(NOOP_TELEMETRY))
    attributes: Attributes = {
        **p.identity,
        "pi.ai.kind": kind,
        "pi.ai.provider": model.provider,
        "pi.ai.model": model.model_id,
        "pi.ai.api": model.api,
    }
    span = p.context.telemetry.start("pi.ai.request", attributes)
    try:
        stream = p.gate.admit(lambda: start(span.context))
    except BaseException as error:
        span.end(error=type(error).__name__)
        raise
    return _observed(stream, span)


async def _observed(stream: AssistantStream, span: Span) -> AsyncGenerator[AssistantMessageEvent]:
    settled: AssistantMessage | None = None
    error: str | None = "incomplete"
    try:
        async for event in stream:
            if isinstance(event, DoneEvent | ErrorEvent):
                settled = event.message
                error = None if isinstance(event, DoneEvent) else settled.stop_reason
            yield event
    except Exception as raised:
        error = type(raised).__name__
        raise
    finally:
        span.end(_result(settled), error=error)


def _result(message: AssistantMessage | None) -> Attributes:
    if message is None:
        return {}
    usage = message.usage
    return {
        "pi.ai.stop_reason": message.stop_reason,
        "pi.ai.usage.input": usage.input,
        "pi.ai.usage.output": usage.output,
        "pi.ai.usage.cache_read": usage.cache_read,
        "pi.ai.usage.cache_write": usage.cache_write,
        "pi.ai.usage.cost": usage.cost.total,
    }
