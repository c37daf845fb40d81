"""Deferred generation against servers with a true background lifecycle."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.codec import JsonValue, decode, encode
from harness.context import AbortController
from harness.frames import DoneEvent, StartFrame
from harness.messages import AssistantMessage, DeferredHandle, plain_text
from harness.models.deferred import way_for
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from harness.settings import DeferredOption, StreamOptions
from tests.models.adapter import model_for
from tests.models.background_server import BackgroundServer, background_server
from tests.models.support import ask, check_stream, collect, options, settle

BACKGROUND = StreamOptions(deferred=True)
BATCH = StreamOptions(deferred=DeferredOption(window="24h"))
WAYS: dict[str, tuple[Api, StreamOptions]] = {
    "background": ("openai-responses", BACKGROUND),
    "openai batch": ("openai-responses", BATCH),
    "anthropic batch": ("anthropic", BATCH),
}


@pytest.fixture
async def server() -> AsyncIterator[BackgroundServer]:
    async with background_server() as running:
        yield running


@pytest.fixture(params=WAYS.values(), ids=list(WAYS))
def way(request: pytest.FixtureRequest) -> tuple[Api, StreamOptions]:
    return request.param


class Caller:
    """Submits and polls, each through a provider of its own, as processes that come and go."""

    def __init__(self, server: BackgroundServer, api: Api, stream: StreamOptions) -> None:
        self.model = model_for(api)
        self._url = f"http://127.0.0.1:{server.port}/v1"
        self._api: Api = api
        self._stream = stream

    def provider(self) -> PydanticAIProvider:
        return PydanticAIProvider(Endpoint(api=self._api, base_url=self._url, api_key="k"))

    async def submit(self, **more: object) -> AssistantMessage:
        provider = self.provider()
        message = await settle(
            provider.stream(
                self.model,
                ask("hi", system="be brief"),
                options(self._stream, **more),  # pyright: ignore[reportArgumentType]
            )
        )
        await provider.aclose()
        return message

    async def handle(self) -> DeferredHandle:
        handle = (await self.submit()).deferred
        assert handle is not None
        # What is stored and read again in another process.
        return decode(encode(handle), DeferredHandle)

    async def poll(self, handle: DeferredHandle) -> AssistantMessage:
        provider = self.provider()
        message = check_stream(
            await collect(provider.fetch_deferred(self.model, handle, options()))
        )
        await provider.aclose()
        return message

    async def cancel(self, handle: DeferredHandle) -> None:
        provider = self.provider()
        await provider.cancel_deferred(self.model, handle, options())
        await provider.aclose()


@pytest.fixture
def caller(server: BackgroundServer, way: tuple[Api, StreamOptions]) -> Caller:
    return Caller(server, *way)


async def test_submit_polls_and_the_answer(server: BackgroundServer, caller: Caller) -> None:
    message = await caller.submit()
    assert message.stop_reason == "deferred"
    assert message.content == ()
    handle = message.deferred
    assert handle is not None
    assert handle.id == server.only.id
    model = caller.model
    assert (handle.provider, handle.model_id, handle.api) == (
        model.provider,
        model.model_id,
        model.api,
    )
    for state in ("in_progress", "in_progress"):
        server.only.state = state
        pending = await caller.poll(handle)
        assert (pending.stop_reason, pending.deferred) == ("deferred", handle)
    server.finish("the answer")
    ready = await caller.poll(handle)
    assert plain_text(ready.content) == "the answer"
    assert ready.stop_reason == "stop"
    assert ready.deferred is None
    assert ready.usage.output == 5
    again = await caller.poll(handle)
    assert plain_text(again.content) == "the answer", (
        "a poll whose outcome was lost may be repeated"
    )


async def test_a_ready_answer_comes_as_a_stream_with_frames(
    server: BackgroundServer, caller: Caller
) -> None:
    handle = await caller.handle()
    server.finish("the answer")
    provider = caller.provider()
    events = await collect(provider.fetch_deferred(caller.model, handle, options()))
    await provider.aclose()
    assert isinstance(events[0], StartFrame)
    assert isinstance(events[-1], DoneEvent)
    assert len(events) == 5


async def test_one_poll_is_one_look(server: BackgroundServer, caller: Caller) -> None:
    handle = await caller.handle()
    before = len(server.calls)
    await caller.poll(handle)
    assert len(server.calls) == before + 1


async def test_the_job_ends_with_an_error_of_its_own(
    server: BackgroundServer, caller: Caller
) -> None:
    handle = await caller.handle()
    server.refuse("too much of it")
    message = await caller.poll(handle)
    assert message.stop_reason == "error", "the job is over: it is not pending"
    assert "too much of it" in (message.error_message or "")


async def test_a_poll_that_does_not_get_through_is_pending(
    server: BackgroundServer, caller: Caller
) -> None:
    handle = await caller.handle()
    server.down = True
    assert (await caller.poll(handle)).deferred == handle
    server.down = False
    server.finish("after all")
    assert plain_text((await caller.poll(handle)).content) == "after all"


async def test_a_job_that_the_provider_forgot(server: BackgroundServer, caller: Caller) -> None:
    handle = await caller.handle()
    server.jobs.clear()
    message = await caller.poll(handle)
    assert (message.stop_reason, message.error_kind) == ("error", "terminal")


async def test_cancelling(server: BackgroundServer, caller: Caller) -> None:
    handle = await caller.handle()
    await caller.cancel(handle)
    assert server.only.state == "cancelled"
    message = await caller.poll(handle)
    assert message.stop_reason in ("error", "deferred")


async def test_cancelling_is_best_effort(server: BackgroundServer, caller: Caller) -> None:
    handle = await caller.handle()
    server.down = True
    await caller.cancel(handle)
    server.down = False
    server.jobs.clear()
    await caller.cancel(handle)


async def test_submitting_can_fail_like_any_request(
    server: BackgroundServer, caller: Caller
) -> None:
    server.down = True
    message = await caller.submit()
    assert (message.stop_reason, message.error_kind) == ("error", "retryable")
    assert message.deferred is None
    assert len([call for call in server.calls if call[0] == "POST"]) == 1


async def test_an_abort_before_the_submission_sends_nothing(
    server: BackgroundServer, caller: Caller
) -> None:
    controller = AbortController()
    controller.abort()
    message = await caller.submit(signal=controller.signal)
    assert message.stop_reason == "aborted"
    assert server.calls == []


async def test_the_payload_hook_sees_what_will_run(
    server: BackgroundServer, caller: Caller
) -> None:
    async def change(payload: JsonValue) -> JsonValue:
        assert isinstance(payload, dict)
        return {**payload, "note": "mine"}

    await caller.submit(on_payload=change)
    assert '"note"' in str(server.only.request).replace("'", '"')


async def test_a_batch_costs_half(server: BackgroundServer) -> None:
    caller = Caller(server, "anthropic", BATCH)
    handle = await caller.handle()
    server.finish("the answer")
    half = (await caller.poll(handle)).usage.cost.input
    from genai_prices import Usage, calc_price

    whole = calc_price(
        Usage(input_tokens=1_000_000), caller.model.model_id, provider_id="anthropic"
    )
    assert half == pytest.approx(float(whole.input_price) / 2)


async def test_a_background_answer_that_is_there_at_once(server: BackgroundServer) -> None:
    caller = Caller(server, "openai-responses", StreamOptions())
    message = await caller.submit()
    assert message.stop_reason != "deferred"


@pytest.mark.parametrize(
    ("api", "wanted", "expected"),
    [
        ("openai-responses", None, None),
        ("openai-responses", False, None),
        ("openai-responses", True, "background"),
        ("openai-responses", DeferredOption(window="15m"), "background"),
        ("openai-responses", DeferredOption(window="1h"), "background"),
        ("openai-responses", DeferredOption(window="24h"), "batch"),
        ("anthropic", True, "batch"),
        ("anthropic", DeferredOption(window="1h"), "batch"),
        ("openai-chat", True, None),
        ("google", True, None),
    ],
)
def test_the_way_a_wire_defers(
    api: Api, wanted: bool | DeferredOption | None, expected: str | None
) -> None:
    assert way_for(api, wanted) == expected
