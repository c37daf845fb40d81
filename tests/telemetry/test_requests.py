"""The span of a request to the API, and what hangs below it (design §13)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from tests.app.kit import Tenant, World, running_api, running_worker, settings_for
from tests.postgres import Database
from tests.telemetry.recording import Recording, attributes, span_id
from tests.workers.kit import eventually

TRACE, ABOVE = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
OPERATIONS = "POST /v1/sessions/{session_id}/lanes/{lane}/operations"


@pytest.fixture
async def tenant(fresh_database: Database, recording: Recording) -> AsyncIterator[Tenant]:
    """A tenant of an API server and a worker that record here."""
    async with AsyncExitStack() as stack:
        settings = settings_for(fresh_database)
        await stack.enter_async_context(running_worker(settings, recording.tracing))
        api = await stack.enter_async_context(running_api(settings, recording.tracing))
        async with AsyncExitStack() as clients:
            yield await World(fresh_database, [api], clients).tenant()


async def test_one_trace_from_the_client_to_the_provider(
    tenant: Tenant, recording: Recording
) -> None:
    session = await tenant.session()
    recording.clear()
    answer = await tenant.client.post(
        f"/v1/sessions/{session}/lanes/main/operations",
        json={"kind": "prompt", "prompt": "echo: sentinel"},
        headers={"traceparent": f"00-{TRACE}-{ABOVE}-01", "Prefer": "wait=30"},
    )
    assert answer.status_code == 200, answer.text
    await eventually(lambda: bool(recording.named("laneway.pass") and recording.named(OPERATIONS)))
    assert recording.traces == {TRACE}
    request = recording.only(OPERATIONS)
    assert request.kind is SpanKind.SERVER
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == ABOVE
    assert attributes(request) == {
        "http.request.method": "POST",
        "http.route": "/v1/sessions/{session_id}/lanes/{lane}/operations",
        "http.response.status_code": 200,
        "url.scheme": "http",
        "laneway.request.id": answer.headers["x-request-id"],
    }
    below = {
        span.name
        for span in recording.spans
        if span.parent is not None and span.parent.span_id == span_id(request)
    }
    assert below == {"laneway.pass", "pi.session.write"}
    assert recording.named("pi.ai.request")
    assert "sentinel" not in recording.everything_said()


async def test_a_request_without_a_trace_begins_one(tenant: Tenant, recording: Recording) -> None:
    recording.clear()
    await tenant.session()
    span = recording.only("POST /v1/sessions")
    assert span.parent is None


async def test_probes_have_no_spans(tenant: Tenant, recording: Recording) -> None:
    recording.clear()
    for path in ("/livez", "/readyz", "/openapi.json"):
        assert (await tenant.client.get(path)).status_code == 200
    assert recording.spans == []


async def test_what_a_client_says_is_in_no_span(tenant: Tenant, recording: Recording) -> None:
    recording.clear()
    async with httpx.AsyncClient(
        base_url=tenant.client.base_url, headers={"Authorization": f"Bearer {tenant.key}"}
    ) as client:
        refused = [
            (await client.get("/v1/sentinel")).status_code,
            (await client.get("/v1/operations?cursor=sentinel")).status_code,
            (await client.get("/v1/sessions/sentinel")).status_code,
            (await client.post("/v1/sessions", content=b"sentinel")).status_code,
            (await client.request("MKCALENDAR", "/v1/sessions")).status_code,
        ]
    assert all(400 <= status < 500 for status in refused), refused
    await eventually(lambda: len(recording.spans) == 5)
    assert recording.named("GET")
    assert recording.named("GET /v1/operations")
    assert [span.status.status_code for span in recording.spans] == [StatusCode.UNSET] * 5
    said = recording.everything_said().lower()
    assert "sentinel" not in said
    assert "mkcalendar" not in said
