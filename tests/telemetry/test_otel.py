"""The adapter over OpenTelemetry's API: explicit parents, W3C places, nothing without an SDK (§5.8)."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind, StatusCode

from harness.context import BACKGROUND
from harness.telemetry import NOOP_TELEMETRY
from harness.telemetry_otel import Tracing
from tests.telemetry.recording import Recording, span_id, trace_id

TRACE = "0af7651916cd43dd8448eb211c80319c"
ABOVE = "b7ad6b7169203331"


def test_without_an_sdk_there_is_nothing() -> None:
    assert Tracing().below(f"00-{TRACE}-{ABOVE}-01") is None
    assert Tracing(trace.NoOpTracerProvider()).below() is None
    assert NOOP_TELEMETRY.traceparent is None
    assert BACKGROUND.telemetry.start("pi.harness.run").context is NOOP_TELEMETRY


def test_a_span_goes_on_below_the_place_that_another_process_named(recording: Recording) -> None:
    telemetry = recording.context(f"00-{TRACE}-{ABOVE}-01").telemetry
    assert telemetry.traceparent == f"00-{TRACE}-{ABOVE}-01"
    outer = telemetry.start("pi.harness.run", {"pi.lane.name": "main"})
    inner = outer.context.start("pi.ai.request")
    place = inner.context.traceparent
    inner.end({"pi.ai.usage.cost": 0.5})
    outer.end()
    run, request = recording.spans
    assert {trace_id(run), trace_id(request)} == {TRACE}
    assert run.parent is not None
    assert run.parent.is_remote
    assert f"{run.parent.span_id:016x}" == ABOVE
    assert recording.parent(request) is run
    assert place == f"00-{TRACE}-{span_id(request):016x}-01"
    assert (run.kind, request.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)


@pytest.mark.parametrize(
    "unreadable",
    [None, "", "00", f"00-{'0' * 32}-{ABOVE}-01", f"00-{TRACE}-{'0' * 16}-01", f"ff-{TRACE}-{ABOVE}-01",
     "x" * 600],
)  # fmt: skip
def test_a_place_that_cannot_be_read_begins_a_trace(
    recording: Recording, unreadable: str | None
) -> None:
    telemetry = recording.context(unreadable).telemetry
    assert telemetry.traceparent is None
    telemetry.start("pi.harness.run").end()
    (span,) = recording.spans
    assert span.parent is None
    assert trace_id(span) != TRACE


def test_two_places_of_one_process_do_not_mix(recording: Recording) -> None:
    one, two = recording.context().telemetry, recording.context().telemetry
    first, second = one.start("pi.harness.run"), two.start("pi.harness.run")
    first.context.start("pi.harness.turn").end()
    second.context.start("pi.harness.turn").end()
    first.end()
    second.end()
    assert recording.tree() == ["run", "  turn", "run", "  turn"]
    assert len(recording.traces) == 2


def test_what_is_not_sampled_is_carried_on_and_not_recorded(recording: Recording) -> None:
    telemetry = recording.context(f"00-{TRACE}-{ABOVE}-00").telemetry
    span = telemetry.start("pi.harness.run")
    place = span.context.traceparent
    span.end()
    assert recording.spans == []
    assert place is not None
    assert place.startswith(f"00-{TRACE}-")
    assert place.endswith("-00")


def test_an_error_is_its_code_and_nothing_else(recording: Recording) -> None:
    recording.context().telemetry.start("pi.harness.step").end(error="terminal")
    (span,) = recording.spans
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "terminal")
    assert span.attributes == {"error.type": "terminal"}
    assert span.events == ()
