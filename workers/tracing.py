"""The trace of a drive pass: below the request that the operation was accepted for, on whichever host (design §13)."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from opentelemetry.trace import SpanKind

from harness.context import BACKGROUND, Context
from harness.telemetry_otel import Tracing

# Between hosts, and from the API's clients: the W3C header that names a place in a trace.
TRACEPARENT = "traceparent"


def context_below(tracing: Tracing, traceparent: str | None) -> Context:
    """A background context at a place in a trace that another process named; for calls that go on
    with that process's span, and must not begin a trace of their own."""
    telemetry = None if traceparent is None else tracing.below(traceparent)
    if telemetry is None or telemetry.traceparent is None:
        return BACKGROUND
    return BACKGROUND.with_telemetry(telemetry)


@contextmanager
def pass_span(
    tracing: Tracing,
    traceparent: str | None,
    *,
    tenant_id: str,
    session_id: str,
    lane: str,
    operation_id: str,
    host_id: str | None,
) -> Generator[Context]:
    """A context for one pass, inside a span that says which host drove. Without a trace to go on
    with, the pass begins one."""
    telemetry = tracing.below(traceparent)
    if telemetry is None:
        yield BACKGROUND
        return
    span = telemetry.open(
        "laneway.pass",
        SpanKind.CONSUMER,
        {
            "laneway.tenant.id": tenant_id,
            "laneway.host.id": host_id or "",
            "pi.session.id": session_id,
            "pi.lane.name": lane,
            "pi.operation.id": operation_id,
        },
    )
    try:
        yield BACKGROUND.with_telemetry(span.context)
    except BaseException as error:
        span.end(error=type(error).__name__)
        raise
    span.end()
