"""The adapter on the Anthropic, OpenAI responses and Google wires, against a real HTTP server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.frames import StartFrame, TextDelta, ThinkingDelta
from harness.messages import (
    ImageContent,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    plain_text,
)
from harness.models.foreign_signature import unpack
from harness.settings import StreamOptions
from tests.models.adapter import ADD, model_for, provider_on
from tests.models.fault_server import FaultServer, Reply, fault_server
from tests.models.support import ask, check_stream, collect, options, settle
from tests.models.wires import (
    anthropic,
    block,
    call_item,
    message_item,
    reasoning_item,
    responses_stream,
    text_block,
    thinking_block,
    tool_block,
)

CLAUDE = model_for("anthropic", reasoning=True)
GPT = model_for("openai-responses", reasoning=True)
GEMINI = model_for("google")


@pytest.fixture
async def server() -> AsyncIterator[FaultServer]:
    async with fault_server() as running:
        yield running


def result(
    call_id: str, *content: TextContent | ImageContent, error: bool = False
) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id,
        tool_name="add",
        content=content,
        is_error=error,
        timestamp=3,
    )


async def test_anthropic_streams_thinking_text_and_calls(server: FaultServer) -> None:
    server.will(
        Reply(
            events=anthropic(
                *thinking_block(0, "sig-1", "let ", "me think"),
                *text_block(1, "I will ", "add"),
                *tool_block(2, "toolu_1", "add", '{"a": 1, ', '"b": 2}'),
                stop="tool_use",
                input_tokens=100,
                output_tokens=50,
                cache_read=1_000,
                cache_write=200,
            )
        )
    )
    async with provider_on(server, "anthropic") as provider:
        events = await collect(provider.stream(CLAUDE, ask("hi", tools=(ADD,)), options()))
    message = check_stream(events)
    assert isinstance(events[0], StartFrame)
    assert [e.delta for e in events if isinstance(e, ThinkingDelta)] == ["let ", "me think"]
    assert [e.delta for e in events if isinstance(e, TextDelta)] == ["I will ", "add"]
    assert message.content == (
        ThinkingContent(thinking="let me think", thinking_signature="sig-1"),
        TextContent(text="I will add"),
        ToolCall(id="toolu_1", name="add", arguments={"a": 1, "b": 2}),
    )
    assert (message.stop_reason, message.response_id) == ("toolUse", "msg_1")
    usage = message.usage
    assert (usage.input, usage.output, usage.cache_read, usage.cache_write) == (100, 50, 1_000, 200)
    assert usage.total_tokens == 1_350
    assert usage.cost.total > 0
    assert usage.cost.total == pytest.approx(
        usage.cost.input + usage.cost.output + usage.cost.cache_read + usage.cost.cache_write
    )
    assert usage.cost.cache_read / 1_000 < usage.cost.input / 100 < usage.cost.cache_write / 200


async def test_anthropic_gets_its_own_thinking_back_and_results_where_they_belong(
    server: FaultServer,
) -> None:
    redacted = block(1, {"type": "redacted_thinking", "data": "secret"})
    server.will(
        Reply(
            events=anthropic(
                *thinking_block(0, "sig-1", "hm"),
                *redacted,
                *tool_block(2, "toolu_1", "add", "{}"),
                *tool_block(3, "toolu_2", "add", '{"a": 2}'),
                stop="tool_use",
            )
        ),
        Reply(events=anthropic(*text_block(0, "done"))),
    )
    async with provider_on(server, "anthropic") as provider:
        first = await settle(provider.stream(CLAUDE, ask("hi", tools=(ADD,)), options()))
        assert first.content[1] == ThinkingContent(
            thinking="", thinking_signature="secret", redacted=True
        )
        image = ImageContent(data="aGVsbG8=", mime_type="image/png")
        context = ask(
            "hi",
            first,
            result("toolu_2", TextContent(text="broken"), error=True),
            result("toolu_1", TextContent(text="seen"), image),
            "and now?",
            system="be brief",
            tools=(ADD,),
        )
        await settle(provider.stream(CLAUDE, context, options(thinking="low")))
    body = server.requests[1].body
    user, assistant, results = body["messages"]
    assert user["role"] == "user"
    thinking, secret, *calls = assistant["content"]
    assert (thinking["type"], thinking["thinking"], thinking["signature"]) == (
        "thinking",
        "hm",
        "sig-1",
    )
    assert (secret["type"], secret["data"]) == ("redacted_thinking", "secret")
    assert [call["id"] for call in calls] == ["toolu_1", "toolu_2"]
    one, two, said = results["content"]
    assert (one["type"], one["tool_use_id"]) == ("tool_result", "toolu_1")
    assert "image" in [part["type"] for part in one["content"]]
    assert (two["tool_use_id"], two["is_error"]) == ("toolu_2", True)
    assert said["text"] == "and now?"
    assert "be brief" in str(body["system"])


async def test_anthropic_caches_unless_told_not_to(server: FaultServer) -> None:
    for _ in range(3):
        server.will(Reply(events=anthropic(*text_block(0, "ok"))))
    async with provider_on(server, "anthropic") as provider:
        for retention in (None, "long", "none"):
            stream = StreamOptions(cache_retention=retention)
            await settle(provider.stream(CLAUDE, ask("hi", system="be brief"), options(stream)))
    default, long, none = (str(request.body) for request in server.requests)
    assert "cache_control" in default
    assert "1h" in long
    assert "cache_control" not in none


async def test_anthropic_window_exceeded_in_the_middle(server: FaultServer) -> None:
    stop = "model_context_window_exceeded"
    server.will(
        Reply(events=anthropic(stop=stop)),
        Reply(events=anthropic(*text_block(0, "a long answer"), stop=stop)),
    )
    async with provider_on(server, "anthropic") as provider:
        empty = await settle(provider.stream(CLAUDE, ask("hi"), options()))
        long = await settle(provider.stream(CLAUDE, ask("hi"), options()))
    assert (empty.stop_reason, empty.error_kind) == ("error", "overflow")
    assert long.stop_reason == "length"


async def test_anthropic_bills_what_an_interrupted_answer_used(server: FaultServer) -> None:
    server.will(Reply(events=anthropic(*text_block(0, "half"), stop=None, input_tokens=321)))
    async with provider_on(server, "anthropic") as provider:
        message = await settle(provider.stream(CLAUDE, ask("hi"), options()))
    assert message.stop_reason == "error"
    assert message.usage.input == 321


async def test_responses_stream_reasoning_text_and_calls(server: FaultServer) -> None:
    server.will(
        responses_stream(
            reasoning_item("thinking hard", "enc-1"),
            message_item("I will add"),
            call_item("call_1", "add", {"a": 1, "b": 2}),
        )
    )
    async with provider_on(server, "openai-responses") as provider:
        events = await collect(provider.stream(GPT, ask("hi", tools=(ADD,)), options()))
    message = check_stream(events)
    thinking, text, call = message.content
    assert isinstance(thinking, ThinkingContent)
    assert thinking.thinking == "thinking hard"
    source = unpack(thinking.thinking_signature)
    assert (source.id, source.signature) == ("rs_1", "enc-1")
    assert isinstance(text, TextContent)
    assert text.text == "I will add"
    assert isinstance(call, ToolCall)
    assert (call.id, call.name, call.arguments) == ("call_1", "add", {"a": 1, "b": 2})
    assert (message.stop_reason, message.response_id) == ("toolUse", "resp_1")
    assert (message.usage.input, message.usage.cache_read, message.usage.output) == (6, 4, 5)
    assert message.usage.cost.total > 0


async def test_responses_get_their_reasoning_back_encrypted(server: FaultServer) -> None:
    server.will(
        responses_stream(reasoning_item("", "enc-1"), call_item("call_1", "add", {"a": 1, "b": 2})),
        responses_stream(message_item("3")),
    )
    async with provider_on(server, "openai-responses") as provider:
        first = await settle(provider.stream(GPT, ask("hi", tools=(ADD,)), options()))
        assert isinstance(first.content[0], ThinkingContent)
        context = ask("hi", first, result("call_1", TextContent(text="3")), tools=(ADD,))
        last = await settle(provider.stream(GPT, context, options(thinking="high")))
    assert plain_text(last.content) == "3"
    opening, body = (request.body for request in server.requests)
    assert opening["store"] is False
    assert "reasoning.encrypted_content" in opening["include"]
    _, reasoning, call, output = body["input"]
    assert (reasoning["type"], reasoning["encrypted_content"]) == ("reasoning", "enc-1")
    assert (call["type"], call["call_id"]) == ("function_call", "call_1")
    assert (output["type"], output["output"]) == ("function_call_output", "3")
    assert body["reasoning"]["effort"] == "high"


async def test_responses_that_reach_the_output_limit_or_fail(server: FaultServer) -> None:
    server.will(
        responses_stream(
            message_item("cut"),
            status="incomplete",
            incomplete_details={"reason": "max_output_tokens"},
        ),
        responses_stream(
            status="failed",
            error={"code": "server_error", "message": "The server had an error"},
        ),
    )
    async with provider_on(server, "openai-responses") as provider:
        cut = await settle(provider.stream(GPT, ask("hi"), options()))
        broken = await settle(provider.stream(GPT, ask("hi"), options()))
    assert cut.stop_reason == "length"
    assert (broken.stop_reason, broken.error_kind) == ("error", "retryable")
    assert "The server had an error" in (broken.error_message or "")


async def test_a_conversation_moves_from_one_wire_to_the_next(server: FaultServer) -> None:
    server.will(
        Reply(
            events=anthropic(
                *thinking_block(0, "sig-1", "hm"),
                *tool_block(1, "toolu_1", "add", "{}"),
                stop="tool_use",
            )
        ),
        responses_stream(reasoning_item("so", "enc-1"), call_item("call_1", "add", {})),
        Reply(events=anthropic(*text_block(0, "done"))),
    )
    async with (
        provider_on(server, "anthropic") as claude,
        provider_on(server, "openai-responses") as gpt,
    ):
        first = await settle(claude.stream(CLAUDE, ask("hi", tools=(ADD,)), options()))
        one = result("toolu_1", TextContent(text="1"))
        second = await settle(gpt.stream(GPT, ask("hi", first, one, tools=(ADD,)), options()))
        two = result("call_1", TextContent(text="2"))
        context = ask("hi", first, one, second, two, tools=(ADD,))
        third = await settle(claude.stream(CLAUDE, context, options()))
    assert plain_text(third.content) == "done"
    foreign = str(server.requests[1].body)
    assert "sig-1" not in foreign
    assert "hm" not in foreign
    back = str(server.requests[2].body)
    assert "sig-1" in back
    assert "enc-1" not in back
    assert "rs_1" not in back


async def test_google_streams_and_calls(server: FaultServer) -> None:
    def chunk(*parts: dict[str, object], finish: str | None = None) -> dict[str, object]:
        return {
            "candidates": [
                {"content": {"role": "model", "parts": list(parts)}, "finishReason": finish}
            ],
            "usageMetadata": {
                "promptTokenCount": 9,
                "candidatesTokenCount": 4,
                "totalTokenCount": 13,
            },
            "responseId": "g1",
        }

    server.will(
        Reply(
            events=[
                chunk({"text": "I will "}),
                chunk({"text": "add"}),
                chunk(
                    {
                        "functionCall": {"name": "add", "args": {"a": 1, "b": 2}},
                        "thoughtSignature": "c2ln",
                    },
                    finish="STOP",
                ),
            ]
        ),
        Reply(events=[chunk({"text": "3"}, finish="STOP")]),
        Reply(
            503,
            body={
                "error": {
                    "code": 503,
                    "message": "The model is overloaded.",
                    "status": "UNAVAILABLE",
                }
            },
        ),
    )
    async with provider_on(server, "google", path="") as provider:
        first = await settle(provider.stream(GEMINI, ask("hi", tools=(ADD,)), options()))
        call = first.content[-1]
        assert isinstance(call, ToolCall)
        assert (call.name, call.arguments) == ("add", {"a": 1, "b": 2})
        assert plain_text(first.content) == "I will add"
        assert first.stop_reason == "toolUse"
        assert (first.usage.input, first.usage.output) == (9, 4)
        context = ask("hi", first, result(call.id, TextContent(text="3")), tools=(ADD,))
        second = await settle(provider.stream(GEMINI, context, options()))
        assert plain_text(second.content) == "3"
        busy = await settle(provider.stream(GEMINI, ask("hi"), options()))
    assert "c2ln" in str(server.requests[1].body)
    assert (busy.error_kind, len(server.requests)) == ("retryable", 3)
