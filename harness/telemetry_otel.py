"""Spans through OpenTelemetry's API: an optional adapter, explicit about parents like the contract (§5.8).

Nothing in the harness imports this module. Who wants spans makes a `Tracing` and gives the context
below it to the calls it makes; where they go is the business of whoever configured the provider.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context as Place
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from harness.telemetry import Attributes, AttributeValue, SpanName

# The contract's attributes and a hosting process's own, which are as free of content. Any: those are
# literals and these are strings, and a mapping's key type is invariant.
AnyAttributes: TypeAlias = Mapping[Any, AttributeValue]

_SCOPE = "laneway"
_HEADER = "traceparent"
_W3C = TraceContextTextMapPropagator()
# What the API itself provides while nobody brought an SDK.
_ABSENT = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)

# Requests to a provider leave the process; all other spans of the contract are work inside it.
_KINDS: dict[SpanName, SpanKind] = {"pi.ai.request": SpanKind.CLIENT}


class OpenTelemetrySpan:
    """A started span. Implements `harness.telemetry.Span`."""

    __slots__ = ("_span", "_tracer")

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    @property
    def context(self) -> OpenTelemetry:
        """The telemetry context below this span."""
        return OpenTelemetry(self._tracer, trace.set_span_in_context(self._span, Place()))

    def rename(self, name: str) -> None:
        """Give the span the name that was not known when it began."""
        self._span.update_name(name)

    def end(self, attributes: AnyAttributes | None = None, *, error: str | None = None) -> None:
        """Close the span; `error` is an error class or code and becomes the status."""
        if attributes:
            self._span.set_attributes(attributes)
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(StatusCode.ERROR, error)
        self._span.end()


class OpenTelemetry:
    """A place in a trace. Implements `harness.telemetry.TelemetryContext`."""

    __slots__ = ("_place", "_tracer")

    def __init__(self, tracer: Tracer, place: Place) -> None:
        self._tracer = tracer
        self._place = place

    def start(self, name: SpanName, attributes: Attributes | None = None) -> OpenTelemetrySpan:
        """Start a span of the harness's contract below this place."""
        return self.open(name, _KINDS.get(name, SpanKind.INTERNAL), attributes or {})

    def open(self, name: str, kind: SpanKind, attributes: AnyAttributes) -> OpenTelemetrySpan:
        """Start a span of the hosting process's own below this place."""
        span = self._tracer.start_span(name, self._place, kind, attributes)
        return OpenTelemetrySpan(self._tracer, span)

    @property
    def traceparent(self) -> str | None:
        """This place as a W3C `traceparent`; None outside any trace."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, self._place)
        return carrier.get(_HEADER)


class Tracing:
    """Where a process's spans go: to `provider`, or to the API's global one, whenever it is set."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._provider = provider

    def below(self, traceparent: str | None = None) -> OpenTelemetry | None:
        """The place that another process named, the root of a new trace when it named none that can
        be read; None while there is no SDK, so that nothing is spent on spans nobody hears of."""
        provider = self._provider or trace.get_tracer_provider()
        if isinstance(provider, _ABSENT):
            return None
        place = Place() if traceparent is None else _W3C.extract({_HEADER: traceparent}, Place())
        return OpenTelemetry(provider.get_tracer(_SCOPE), place)
