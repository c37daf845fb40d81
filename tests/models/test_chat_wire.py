"""The adapter on the OpenAI chat wire, against a real HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from harness.frames import StartFrame, TextDelta, ToolCallDelta
from harness.messages import (
    AssistantMessage,
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.models.protocol import ModelCost
from harness.models.pydantic_ai import PydanticAIProvider
from harness.settings import StreamOptions
from harness.usage import ZERO_USAGE
from tests.models.adapter import ADD, model_for, provider_on
from tests.models.fault_server import FaultServer, Reply, fault_server
from tests.models.support import ask, check_stream, collect, options, settle
from tests.models.wires import DONE, chat_call, chat_chunk, chat_text, chat_usage

MODEL = model_for("openai-chat")


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with fault_server() as running:
        yield running


@pytest.fixture
async def provider(server: FaultServer) -> AsyncIterator[PydanticAIProvider]:
    async with provider_on(server, "openai-chat") as made:
        yield made


async def test_text_streams_piece_by_piece(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    server.will(chat_text("Hel", "lo ", "you", usage=chat_usage(20, 3, cached=8)))
    events = await collect(provider.stream(MODEL, ask("hi", system="be brief"), options()))
    message = check_stream(events)
    assert isinstance(events[0], StartFrame)
    assert [event.delta for event in events if isinstance(event, TextDelta)] == [
        "Hel",
        "lo ",
        "you",
    ]
    assert message.content == (TextContent(text="Hello you"),)
    assert message.stop_reason == "stop"
    assert message.response_id == "chatcmpl-1"
    assert (message.usage.input, message.usage.cache_read) == (12, 8)
    assert (message.usage.output, message.usage.total_tokens) == (3, 23)


async def test_the_request_on_the_wire(server: FaultServer, provider: PydanticAIProvider) -> None:
    server.will(chat_text("ok"))
    stream = StreamOptions(temperature=0.5, max_tokens=77, headers={"x-mine": "1"})
    await settle(
        provider.stream(MODEL, ask("hi", system="be brief", tools=(ADD,)), options(stream))
    )
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == "Bearer k"
    assert request.headers["x-mine"] == "1"
    assert "x-laneway-request" not in request.headers
    body = request.body
    assert body["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
    ]
    assert (body["model"], body["stream"], body["temperature"]) == ("small", True, 0.5)
    assert body["max_tokens"] == 77
    (tool,) = body["tools"]
    assert tool["function"]["name"] == "add"
    assert tool["function"]["parameters"]["required"] == ["a", "b"]


async def test_output_is_bounded_by_the_model(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    server.will(chat_text("ok"), chat_text("ok"))
    await settle(provider.stream(MODEL, ask("hi"), options()))
    await settle(provider.stream(MODEL, ask("hi"), options(StreamOptions(max_tokens=9_999))))
    assert [request.body["max_tokens"] for request in server.requests] == [1_000, 1_000]


async def test_parallel_calls_may_interleave(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    server.will(
        Reply(
            events=[
                chat_chunk({"role": "assistant", "content": "let me see"}),
                chat_call(0, "c1", "add", '{"a": 1,'),
                chat_call(1, "c2", "add", '{"a": 3,'),
                chat_call(0, None, None, ' "b": 2}'),
                chat_call(1, None, None, ' "b": 4}'),
                chat_chunk({}, "tool_calls"),
                chat_chunk(usage=chat_usage(5, 9)),
                DONE,
            ]
        )
    )
    events = await collect(provider.stream(MODEL, ask("hi", tools=(ADD,)), options()))
    message = check_stream(events)
    assert message.stop_reason == "toolUse"
    assert message.content == (
        TextContent(text="let me see"),
        ToolCall(id="c1", name="add", arguments={"a": 1, "b": 2}),
        ToolCall(id="c2", name="add", arguments={"a": 3, "b": 4}),
    )
    pieces = [
        (event.content_index, event.delta) for event in events if isinstance(event, ToolCallDelta)
    ]
    assert pieces == [(1, '{"a": 1,'), (2, '{"a": 3,'), (1, ' "b": 2}'), (2, ' "b": 4}')]


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        (["{}"], {}),
        ([""], {}),
        (['{"x": NaN, "y": -Infinity}'], {"x": "NaN", "y": "-Infinity"}),
        (['{"x": "a\nb"}'], {"x": "a\nb"}),
        (['{"x": "\\ud83d', '\\ude00"}'], {"x": "😀"}),
        (['{"x": "\\ud83d"}'], {"x": "\ud83d"}),
        (['{"x": 12345678901234567890123}'], {"x": 12345678901234567890123}),
        (['{"x": '], {"INVALID_JSON": '{"x": '}),
        (["[1, 2]"], {"INVALID_JSON": "[1, 2]"}),
        (["[" * 5_000], {"INVALID_JSON": "[" * 5_000}),
    ],
)
async def test_arguments_of_every_sort_are_made_storable(
    server: FaultServer,
    provider: PydanticAIProvider,
    pieces: list[str],
    arguments: dict[str, object],
) -> None:
    first, *rest = pieces
    server.will(
        Reply(
            events=[
                chat_call(0, "c1", "add", first),
                *(chat_call(0, None, None, piece) for piece in rest),
                chat_chunk({}, "tool_calls"),
                DONE,
            ]
        )
    )
    message = await settle(provider.stream(MODEL, ask("hi", tools=(ADD,)), options()))
    (call,) = message.content
    assert isinstance(call, ToolCall)
    assert call.arguments == arguments


async def test_a_repeated_call_id_is_told_apart(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    server.will(
        Reply(
            events=[
                chat_call(0, "same", "add", "{}"),
                chat_call(1, "same", "add", "{}"),
                chat_chunk({}, "tool_calls"),
                DONE,
            ]
        )
    )
    message = await settle(provider.stream(MODEL, ask("hi", tools=(ADD,)), options()))
    assert [part.id for part in message.content if isinstance(part, ToolCall)] == ["same", "same_2"]


async def test_a_character_split_between_deltas_is_put_together(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    server.will(chat_text("a\ud83d", "\ude00b", "\ud83d"))
    events = await collect(provider.stream(MODEL, ask("hi"), options()))
    message = check_stream(events)
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["a", "😀b"]
    assert message.content == (TextContent(text="a😀b\ud83d"),)


async def test_text_that_utf8_cannot_hold_goes_out_replaced(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    server.will(chat_text("ok"))
    call = ToolCall(id="c1", name="add", arguments={"a": "\ud800", "b": [{"\udfff": 1}]})
    said = AssistantMessage(
        content=(TextContent(text="x\ud800"), call),
        api="openai-chat",
        provider="local",
        model="small",
        usage=ZERO_USAGE,
        stop_reason="toolUse",
        timestamp=1,
    )
    result = ToolResultMessage(
        tool_call_id="c1",
        tool_name="add",
        content=(TextContent(text="nul \x00 and \udc00"),),
        is_error=False,
        timestamp=2,
    )
    message = await settle(
        provider.stream(MODEL, ask("\ud800", said, result, system="\ud800"), options())
    )
    assert message.stop_reason == "stop"
    system, user, assistant, tool = server.requests[0].body["messages"]
    assert "\ud800" not in system["content"] + user["content"] + assistant["content"]
    assert tool["content"].startswith("nul \x00 and ")


async def test_images_go_out_and_those_of_results_follow_them(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    image = ImageContent(data="aGVsbG8=", mime_type="image/png")
    server.will(chat_text("ok"))
    call = ToolCall(id="c1", name="look", arguments={})
    first = await _called(server, provider, call)
    result = ToolResultMessage(
        tool_call_id="c1",
        tool_name="look",
        content=(TextContent(text="seen"), image),
        is_error=False,
        timestamp=2,
    )
    context = ask(UserMessage(content=(TextContent(text="a"), image), timestamp=1), first, result)
    server.will(chat_text("ok"))
    await settle(provider.stream(MODEL, context, options()))
    user, assistant, tool, images = server.requests[-1].body["messages"]
    assert user["content"][1]["image_url"]["url"] == "data:image/png;base64,aGVsbG8="
    assert assistant["tool_calls"][0]["id"] == "c1"
    assert isinstance(tool["content"], str)
    assert images["role"] == "user"
    assert images["content"][1]["type"] == "image_url"


async def _called(
    server: FaultServer, provider: PydanticAIProvider, call: ToolCall
) -> AssistantMessage:
    server.replies.clear()
    server.will(
        Reply(events=[chat_call(0, call.id, call.name, "{}"), chat_chunk({}, "tool_calls"), DONE])
    )
    return await settle(provider.stream(MODEL, ask("hi"), options()))


async def test_reasoning_of_compatible_servers_is_thinking_and_is_not_replayed_as_text(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    server.will(
        Reply(
            events=[
                chat_chunk({"role": "assistant", "reasoning_content": "hm, "}),
                chat_chunk({"reasoning_content": "yes"}),
                chat_chunk({"content": "42"}),
                chat_chunk({}, "stop"),
                DONE,
            ]
        ),
        chat_text("ok"),
    )
    message = await settle(provider.stream(MODEL, ask("hi"), options()))
    thinking, text = message.content
    assert isinstance(thinking, ThinkingContent)
    assert thinking.thinking == "hm, yes"
    assert text == TextContent(text="42")
    await settle(provider.stream(MODEL, ask("hi", message, "and?"), options()))
    _, assistant, user = server.requests[1].body["messages"]
    assert assistant["content"] == "42"
    assert user["content"] == "and?"


async def test_output_limit_and_filter(server: FaultServer, provider: PydanticAIProvider) -> None:
    server.will(chat_text("cut", finish="length"), chat_text("no", finish="content_filter"))
    assert (await settle(provider.stream(MODEL, ask("hi"), options()))).stop_reason == "length"
    refused = await settle(provider.stream(MODEL, ask("hi"), options()))
    assert (refused.stop_reason, refused.error_kind) == ("error", "terminal")
    assert refused.content == (TextContent(text="no"),)


async def test_an_answer_that_never_was_for_a_full_window_is_an_overflow(
    server: FaultServer, provider: PydanticAIProvider
) -> None:
    small = model_for("openai-chat", context_window=50)
    server.will(
        chat_text(finish="length", usage=chat_usage(60, 0)),
        chat_text("a real answer", usage=chat_usage(60, 3)),
    )
    cut = await settle(provider.stream(small, ask("hi"), options()))
    assert (cut.stop_reason, cut.error_kind) == ("error", "overflow")
    assert cut.usage.input == 60
    answered = await settle(provider.stream(small, ask("hi"), options()))
    assert answered.stop_reason == "stop", "a substantive answer is not thrown away"


async def test_configured_prices_apply(server: FaultServer, provider: PydanticAIProvider) -> None:
    priced = msgspec.structs.replace(MODEL, cost=ModelCost(input=1.0, output=2.0, cache_read=0.5))
    server.will(chat_text("ok", usage=chat_usage(1_000_000, 500_000, cached=200_000)))
    cost = (await settle(provider.stream(priced, ask("hi"), options()))).usage.cost
    assert (cost.input, cost.output, cost.cache_read) == (0.8, 1.0, 0.1)
    assert cost.total == pytest.approx(1.9)
