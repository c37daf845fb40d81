"""Spans kept in memory, and a readable picture of them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import format_trace_id

from harness.context import BACKGROUND, Context
from harness.telemetry_otel import Tracing

WRITE = "pi.session.write"
HANDLER = "pi.harness.event_handler"


class _InOrder(RandomIdGenerator):
    """Span ids that grow, so that siblings have an order without a clock."""

    def __init__(self) -> None:
        self._next = itertools.count(1)

    def generate_span_id(self) -> int:
        return next(self._next)


class Recording:
    """An SDK that keeps what ended."""

    def __init__(self) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider(
            id_generator=_InOrder(), resource=Resource({}), shutdown_on_exit=False
        )
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self.tracing = Tracing(provider)

    def context(self, traceparent: str | None = None) -> Context:
        """A context at the root of a trace, or below another process's span."""
        telemetry = self.tracing.below(traceparent)
        assert telemetry is not None
        return BACKGROUND.with_telemetry(telemetry)

    def clear(self) -> None:
        """Forget what was recorded."""
        self._memory.clear()

    @property
    def spans(self) -> list[ReadableSpan]:
        """Every span that ended, in the order in which they began."""
        return sorted(self._memory.get_finished_spans(), key=span_id)

    def named(self, name: str) -> list[ReadableSpan]:
        """The spans of one name."""
        return [span for span in self.spans if span.name == name]

    def only(self, name: str) -> ReadableSpan:
        """The one span of a name."""
        (found,) = self.named(name)
        return found

    def parent(self, span: ReadableSpan) -> ReadableSpan | None:
        """The span above, if this recording has it."""
        above = span.parent
        if above is None:
            return None
        return next((each for each in self.spans if span_id(each) == above.span_id), None)

    def tree(self, *show: str, also: Sequence[str] = ()) -> list[str]:
        """The spans as an indented list of names without their prefix, with the attributes in
        `show`; writes and event handlers only when they are named in `also`."""
        lines: list[str] = []

        def add(above: ReadableSpan | None, depth: int) -> None:
            for span in self.spans:
                if self.parent(span) is not above:
                    continue
                if span.name not in (WRITE, HANDLER) or span.name in also:
                    found = attributes(span)
                    said = [str(found[name]) for name in show if name in found]
                    lines.append(" ".join(["  " * depth + _short(span.name), *said]))
                add(span, depth + 1)

        add(None, 0)
        return lines

    @property
    def traces(self) -> set[str]:
        """The ids of all traces."""
        return {trace_id(span) for span in self.spans}

    def everything_said(self) -> str:
        """Every name, attribute, status and event of every span, as text."""
        return "\n".join(
            json.dumps(json.loads(span.to_json()), ensure_ascii=False) for span in self.spans
        )


def span_id(span: ReadableSpan) -> int:
    """The span's id."""
    assert span.context is not None
    return span.context.span_id


def trace_id(span: ReadableSpan) -> str:
    """The trace's id as `traceparent` spells it."""
    assert span.context is not None
    return format_trace_id(span.context.trace_id)


def attributes(span: ReadableSpan) -> Mapping[str, object]:
    """The span's attributes."""
    return dict(span.attributes or {})


def _short(name: str) -> str:
    return name.removeprefix("pi.harness.").removeprefix("pi.")
