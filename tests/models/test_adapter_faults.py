"""What can go wrong between the adapter and a provider, on each wire, against a real HTTP server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from harness.codec import JsonValue
from harness.context import AbortController
from harness.frames import ErrorEvent, StartFrame, TextDelta
from harness.messages import plain_text
from harness.models.protocol import ResponseMetadata
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from harness.settings import StreamOptions
from tests.models.adapter import model_for, provider_on
from tests.models.fault_server import Close, Cut, FaultServer, Pause, Reply, fault_server
from tests.models.support import ask, check_stream, collect, options, settle
from tests.models.wires import (
    anthropic,
    chat_chunk,
    chat_text,
    message_item,
    responses_stream,
    text_block,
)

APIS: tuple[Api, ...] = ("openai-chat", "openai-responses", "anthropic")


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with fault_server() as running:
        yield running


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return request.param


@pytest.fixture
async def provider(server: FaultServer, api: Api) -> AsyncIterator[PydanticAIProvider]:
    async with provider_on(server, api) as made:
        yield made


def answer(api: Api, text: str) -> Reply:
    """A complete answer on a wire."""
    match api:
        case "openai-chat":
            return chat_text(text)
        case "openai-responses":
            return responses_stream(message_item(text))
        case _:
            return Reply(events=anthropic(*text_block(0, text)))


def half(api: Api, text: str, *then: object) -> Reply:
    """The beginning of an answer with one piece of text, and what happens then."""
    match api:
        case "openai-chat":
            return Reply(events=[chat_chunk({"role": "assistant", "content": text}), *then])
        case "openai-responses":
            whole = responses_stream(message_item(text)).events
            assert whole is not None
            kinds = [event["type"] for event in whole if isinstance(event, dict)]
            until = kinds.index("response.output_text.delta")
            return Reply(events=[*whole[: until + 1], *then])
        case _:
            begun = anthropic(*text_block(0, text)[:-1], stop=None)
            return Reply(events=[*begun, *then])


def refusal(api: Api, status: int, text: str, code: str = "x", **headers: str) -> Reply:
    """An error answer in a wire's own form."""
    error: dict[str, object] = {"message": text, "type": code}
    body: dict[str, object] = {"error": error}
    if api == "anthropic":
        body["type"] = "error"
    else:
        error["code"] = code
    return Reply(status, headers={k.replace("_", "-"): v for k, v in headers.items()}, body=body)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (429, "Rate limit reached", "retryable"),
        (500, "Internal server error", "retryable"),
        (502, "bad gateway", "retryable"),
        (503, "Loading model", "retryable"),
        (529, "Overloaded", "retryable"),
        (408, "timeout", "retryable"),
        (400, "Unsupported value: 'temperature'", "terminal"),
        (401, "invalid key", "terminal"),
        (402, "Insufficient Balance", "terminal"),
        (403, "not allowed", "terminal"),
        (404, "no such model", "terminal"),
        (422, "wrong", "terminal"),
        (501, "not here", "terminal"),
        (400, "prompt is too long: 213462 tokens > 200000 maximum", "overflow"),
        (400, "request (5 tokens) exceeds the available context size (4 tokens)", "overflow"),
        (413, "request_too_large: Request exceeds the maximum size", "overflow"),
        (500, "Context size has been exceeded.", "overflow"),
    ],
)
async def test_statuses_are_classified_and_sent_once(
    server: FaultServer, provider: PydanticAIProvider, api: Api, status: int, text: str, kind: str
) -> None:
    server.will(refusal(api, status, text))
    events = await collect(provider.stream(model_for(api), ask("hi"), options()))
    assert [type(event) for event in events] == [ErrorEvent], "nothing began"
    message = check_stream(events)
    assert (message.stop_reason, message.error_kind) == ("error", kind)
    assert text in (message.error_message or "")
    assert len(server.requests) == 1, "one billed attempt is one request"


async def test_an_exhausted_account_is_not_a_rate_limit(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(refusal(api, 429, "You exceeded your current quota", "insufficient_quota"))
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert message.error_kind == ("terminal" if api != "anthropic" else "retryable")


@pytest.mark.parametrize(
    ("headers", "wait"),
    [
        ({"retry_after": "7"}, 7_000),
        ({"retry_after_ms": "350"}, 350),
        ({}, None),
        ({"retry_after": "soon"}, None),
    ],
)
async def test_the_time_to_wait_is_read_from_the_headers(
    server: FaultServer,
    provider: PydanticAIProvider,
    api: Api,
    headers: dict[str, str],
    wait: int | None,
) -> None:
    server.will(refusal(api, 429, "slow down", **headers))
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert message.retry_after_ms == wait


async def test_a_reset_in_the_middle_keeps_what_came(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    arrived = asyncio.Event()
    server.will(half(api, "half of", Pause(arrived), Cut()))
    seen: list[object] = []
    async for event in provider.stream(model_for(api), ask("hi"), options()):
        seen.append(event)
        if isinstance(event, TextDelta):
            arrived.set()
    last = seen[-1]
    assert isinstance(last, ErrorEvent)
    assert last.message.error_kind == "retryable"
    assert plain_text(last.message.content) == "half of"
    assert len(server.requests) == 1


async def test_a_stream_that_ends_early_in_good_order_is_no_answer(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(half(api, "half of", Close()))
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert (message.stop_reason, message.error_kind) == ("error", "retryable")
    assert plain_text(message.content) == "half of"


async def test_a_stream_without_anything_in_it(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(Reply(events=[]))
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert (message.stop_reason, message.error_kind) == ("error", "retryable")


async def test_garbage_in_the_stream(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(half(api, "half of", "data: {nonsense\n\n"))
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert (message.stop_reason, message.error_kind) == ("error", "retryable")


@pytest.mark.parametrize("body", ["<html>Bad gateway</html>", "", None])
async def test_a_page_instead_of_json(
    server: FaultServer, provider: PydanticAIProvider, api: Api, body: object
) -> None:
    server.will(Reply(502, body=body))
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert (message.stop_reason, message.error_kind) == ("error", "retryable")
    assert message.error_message


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("overloaded_error", "Overloaded", "retryable"),
        ("server_error", "The server had an error", "retryable"),
        ("invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", "overflow"),
        ("invalid_request_error", "no", "terminal"),
    ],
)
async def test_an_error_inside_the_stream(
    server: FaultServer, provider: PydanticAIProvider, api: Api, code: str, text: str, kind: str
) -> None:
    match api:
        case "openai-chat":
            error: object = {"error": {"message": text, "type": code, "code": code}}
        case "openai-responses":
            error = {
                "type": "error",
                "code": code,
                "message": text,
                "param": None,
                "sequence_number": 9,
            }
        case _:
            error = {"type": "error", "error": {"type": code, "message": text}}
    server.will(half(api, "half of", error))
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert (message.stop_reason, message.error_kind) == ("error", kind)
    assert text in (message.error_message or "")
    assert plain_text(message.content) == "half of"


async def test_nobody_listens(api: Api) -> None:
    async with fault_server() as gone:
        pass
    async with provider_on(gone, api) as provider:
        message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert (message.stop_reason, message.error_kind) == ("error", "retryable")


async def test_an_abort_in_the_middle_closes_the_connection(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(half(api, "half of", Pause(asyncio.Event())))
    controller = AbortController()
    seen: list[object] = []
    async for event in provider.stream(
        model_for(api), ask("hi"), options(signal=controller.signal)
    ):
        seen.append(event)
        if isinstance(event, TextDelta):
            controller.abort()
    last = seen[-1]
    assert isinstance(last, ErrorEvent)
    assert last.message.stop_reason == "aborted"
    assert plain_text(last.message.content) == "half of"
    await asyncio.wait_for(server.requests[0].gone.wait(), 10)


async def test_an_abort_before_the_first_byte(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(Reply(events=[Pause(asyncio.Event())]))
    controller = AbortController()
    task = asyncio.create_task(
        collect(provider.stream(model_for(api), ask("hi"), options(signal=controller.signal)))
    )
    request = await server.request()
    controller.abort()
    message = check_stream(await task)
    assert message.stop_reason == "aborted"
    await asyncio.wait_for(request.gone.wait(), 10)


async def test_an_abort_before_the_first_step_of_the_request(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    controller = AbortController()
    task = asyncio.create_task(
        collect(provider.stream(model_for(api), ask("hi"), options(signal=controller.signal)))
    )
    # The reader runs first and starts the request's task, which then is cancelled before it ran.
    asyncio.get_running_loop().call_soon(controller.abort)
    assert check_stream(await task).stop_reason == "aborted"
    assert server.requests == []


async def test_a_key_follows_no_redirect(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    async with fault_server() as elsewhere:
        server.will(Reply(307, headers={"location": f"{elsewhere.url}/v1/x"}, body={}))
        message = await settle(provider.stream(model_for(api), ask("hi"), options()))
        assert elsewhere.requests == []
    assert (message.stop_reason, message.error_kind) == ("error", "terminal")


async def test_an_abort_before_the_request_sends_nothing(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    controller = AbortController()
    controller.abort()
    events = await collect(
        provider.stream(model_for(api), ask("hi"), options(signal=controller.signal))
    )
    assert check_stream(events).stop_reason == "aborted"
    assert server.requests == []


async def test_a_reader_that_is_cancelled_takes_the_connection_with_it(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(half(api, "half of", Pause(asyncio.Event())))
    task = asyncio.create_task(collect(provider.stream(model_for(api), ask("hi"), options())))
    request = await server.request()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.wait_for(request.gone.wait(), 10)


async def test_a_reader_that_stops_reading_takes_the_connection_with_it(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(half(api, "half of", Pause(asyncio.Event())))
    stream = provider.stream(model_for(api), ask("hi"), options())
    first = await anext(stream)
    assert isinstance(first, StartFrame)
    await stream.aclose()  # pyright: ignore[reportAttributeAccessIssue]  # a generator, like every provider's
    await asyncio.wait_for(server.requests[0].gone.wait(), 10)


async def test_a_request_that_takes_too_long(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(half(api, "half of", Pause(asyncio.Event())))
    message = await settle(
        provider.stream(model_for(api), ask("hi"), options(StreamOptions(timeout_ms=300)))
    )
    assert (message.stop_reason, message.error_kind) == ("error", "retryable")


async def test_payload_and_response_hooks(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(answer(api, "ok"))
    heard: list[ResponseMetadata] = []
    seen: list[JsonValue] = []

    async def change(payload: JsonValue) -> JsonValue:
        assert isinstance(payload, dict)
        seen.append(payload)
        return {**payload, "user_note": "grüße"}

    message = await settle(
        provider.stream(
            model_for(api), ask("hi"), options(on_payload=change, on_response=heard.append)
        )
    )
    assert plain_text(message.content) == "ok"
    assert server.requests[0].body["user_note"] == "grüße"
    assert "user_note" not in str(seen)
    (metadata,) = heard
    assert metadata.status == 200
    assert metadata.headers["content-type"] == "text/event-stream"


async def test_the_response_hook_hears_of_refusals_too(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(refusal(api, 429, "slow down"))
    heard: list[ResponseMetadata] = []
    await settle(provider.stream(model_for(api), ask("hi"), options(on_response=heard.append)))
    assert [metadata.status for metadata in heard] == [429]


async def test_a_failing_hook_is_the_callers_own_failure(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    async def defect(payload: JsonValue) -> JsonValue:
        raise LookupError("gate closed")

    with pytest.raises(LookupError, match="gate closed"):
        await collect(provider.stream(model_for(api), ask("hi"), options(on_payload=defect)))
    assert server.requests == [], "the request was never sent"


async def test_many_requests_share_one_provider(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(*(answer(api, "ok") for _ in range(30)))
    hooks = [[] for _ in range(30)]

    async def one(number: int) -> str:
        async def mark(payload: JsonValue) -> JsonValue:
            assert isinstance(payload, dict)
            return {**payload, "number": number}

        message = await settle(
            provider.stream(
                model_for(api),
                ask(f"prompt {number}"),
                options(on_payload=mark, on_response=hooks[number].append),
            )
        )
        return message.stop_reason

    assert set(await asyncio.gather(*(one(number) for number in range(30)))) == {"stop"}
    assert sorted(request.body["number"] for request in server.requests) == list(range(30))
    for request in server.requests:
        assert f"prompt {request.body['number']}" in str(request.body)
    assert all(len(heard) == 1 for heard in hooks)


async def test_a_provider_can_be_used_again_after_it_was_closed(
    server: FaultServer, provider: PydanticAIProvider, api: Api
) -> None:
    server.will(answer(api, "one"), answer(api, "two"))
    await settle(provider.stream(model_for(api), ask("hi"), options()))
    await provider.aclose()
    message = await settle(provider.stream(model_for(api), ask("hi"), options()))
    assert plain_text(message.content) == "two"


async def test_an_address_that_makes_no_sense() -> None:
    provider = PydanticAIProvider(Endpoint(api="openai-chat", base_url="nonsense"))
    message = await settle(provider.stream(model_for("openai-chat"), ask("hi"), options()))
    assert message.stop_reason == "error"
    await provider.aclose()
