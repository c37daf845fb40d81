"""The span contract of the harness: names, parents, content-free attributes, a no-op default (§5.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias

SpanName: TypeAlias = Literal[
    "pi.harness.run",
    "pi.harness.compaction",
    "pi.harness.navigation",
    "pi.harness.checkpoint",
    "pi.harness.turn",
    "pi.harness.step",
    "pi.harness.tool",
    "pi.harness.hook",
    "pi.harness.sleep",
    "pi.harness.event_handler",
    "pi.session.write",
    "pi.ai.request",
]

# Every attribute there is: a new one is declared here and described in docs/telemetry.md first.
AttributeName: TypeAlias = Literal[
    "pi.session.id",
    "pi.lane.name",
    "pi.operation.id",
    "pi.operation.kind",
    "pi.operation.recovery",
    "pi.operation.outcome",
    "pi.checkpoint.kind",
    "pi.turn.id",
    "pi.step.kind",
    "pi.step.id",
    "pi.step.attempt",
    "pi.step.recovery",
    "pi.step.outcome",
    "pi.task.id",
    "pi.compaction.reason",
    "pi.tool.name",
    "pi.tool.invocation_id",
    "pi.tool.replay",
    "pi.tool.recovery",
    "pi.tool.is_error",
    "pi.hook.name",
    "pi.hook.registration_id",
    "pi.hook.outcome",
    "pi.sleep.delay_ms",
    "pi.sleep.outcome",
    "pi.event.type",
    "pi.session.item_count",
    "pi.session.item_kinds",
    "pi.session.first_seq",
    "pi.session.last_seq",
    "pi.ai.operation",
    "pi.ai.provider",
    "pi.ai.model",
    "pi.ai.api",
    "pi.ai.deferred",
    "pi.ai.response.stop_reason",
    "pi.ai.http.status_code",
    "pi.ai.usage.input_tokens",
    "pi.ai.usage.output_tokens",
    "pi.ai.usage.cache_read_tokens",
    "pi.ai.usage.cache_write_tokens",
    "pi.ai.usage.total_tokens",
    "pi.ai.usage.cost",
    "pi.ai.stream.chunk_count",
    "pi.ai.stream.time_to_first_chunk_ms",
]
AttributeValue: TypeAlias = str | int | float | bool | tuple[str, ...]
Attributes: TypeAlias = Mapping[AttributeName, AttributeValue]


class Span(Protocol):
    """One started span. `context` is the parent that its children use."""

    @property
    def context(self) -> TelemetryContext:
        """The telemetry context below this span."""
        ...

    def end(self, attributes: Attributes | None = None, *, error: str | None = None) -> None:
        """Close the span; `error` is an error class or code, never a message with content."""
        ...


class TelemetryContext(Protocol):
    """Starts spans. Attributes hold ids, names, counts, durations, statuses, usage: no content."""

    def start(self, name: SpanName, attributes: Attributes | None = None) -> Span:
        """Start a child span."""
        ...

    @property
    def traceparent(self) -> str | None:
        """This place in the trace as a W3C `traceparent`, for another process to go on below; None
        without a trace."""
        ...


class NoopTelemetry:
    """Starts nothing, records nothing."""

    __slots__ = ()

    def start(self, name: SpanName, attributes: Attributes | None = None) -> Span:
        return _NOOP_SPAN

    @property
    def traceparent(self) -> None:
        return None


class _NoopSpan:
    __slots__ = ()

    @property
    def context(self) -> TelemetryContext:
        return NOOP_TELEMETRY

    def end(self, attributes: Attributes | None = None, *, error: str | None = None) -> None:
        return None


NOOP_TELEMETRY = NoopTelemetry()
_NOOP_SPAN = _NoopSpan()
