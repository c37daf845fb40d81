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
AttributeValue: TypeAlias = str | int | float | bool | tuple[str, ...]
Attributes: TypeAlias = Mapping[str, AttributeValue]


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


class NoopTelemetry:
    """Starts nothing, records nothing."""

    __slots__ = ()

    def start(self, name: SpanName, attributes: Attributes | None = None) -> Span:
        return _NOOP_SPAN


class _NoopSpan:
    __slots__ = ()

    @property
    def context(self) -> TelemetryContext:
        return NOOP_TELEMETRY

    def end(self, attributes: Attributes | None = None, *, error: str | None = None) -> None:
        return None


NOOP_TELEMETRY = NoopTelemetry()
_NOOP_SPAN = _NoopSpan()
