"""A request to a provider names its span, so that a gateway can go on below it (design §13)."""

from __future__ import annotations

from dataclasses import replace

from harness.settings import StreamOptions
from tests.models.adapter import model_for, provider_on
from tests.models.fault_server import fault_server
from tests.models.support import ask, options, settle
from tests.models.wires import chat_text
from tests.telemetry.recording import Recording


async def test_the_header_is_the_requests_place_in_the_trace(recording: Recording) -> None:
    span = recording.context().telemetry.start("pi.ai.request")
    mine = {"traceparent": "mine"}
    asked = [
        replace(options(), telemetry=span.context),
        replace(options(StreamOptions(headers=mine)), telemetry=span.context),
        options(),
    ]
    async with fault_server() as server, provider_on(server, "openai-chat") as provider:
        for each in asked:
            server.will(chat_text("ok"))
            await settle(provider.stream(model_for("openai-chat"), ask("hi"), each))
    sent = [request.headers.get("traceparent") for request in server.requests]
    assert sent == [span.context.traceparent, "mine", None]
