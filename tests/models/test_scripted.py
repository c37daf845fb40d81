"""The scripted provider plays what it is told, the same each time, and stops when it is told to."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from harness.codec import JsonValue
from harness.context import AbortController
from harness.frames import DoneEvent, ErrorEvent, TextDelta, ToolCallDelta
from harness.messages import (
    AssistantMessage,
    DeferredHandle,
    TextContent,
    ThinkingContent,
    ToolCall,
    UserMessage,
    empty_assistant,
)
from harness.models.protocol import ResponseMetadata
from harness.models.registry import ModelRegistry
from harness.models.script import (
    At,
    Call,
    Defer,
    Delay,
    Fail,
    Gate,
    Interleave,
    Raise,
    ScriptedRequest,
    ScriptedResponse,
    Settle,
    Text,
    Thinking,
    by_turn,
    call,
    calls,
    fail,
    say,
    steps,
    tokens,
)
from harness.models.scripted import ScriptedProvider, scripted_model
from tests.models.support import ask, check_stream, collect, options, settle

MODEL = scripted_model()


async def test_text_arrives_in_the_number_of_pieces_asked_for() -> None:
    provider = ScriptedProvider([say("hello wonderful world", deltas=20, usage=tokens(7, 3))])
    events = await collect(provider.stream(MODEL, ask("hi"), options()))
    message = check_stream(events)
    assert sum(isinstance(event, TextDelta) for event in events) == 20
    assert message.content == (TextContent(text="hello wonderful world"),)
    assert message.stop_reason == "stop"
    assert message.usage == tokens(7, 3)


async def test_more_pieces_than_characters_are_as_many_as_characters() -> None:
    events = await collect(
        ScriptedProvider([say("abc", deltas=10)]).stream(MODEL, ask("hi"), options())
    )
    assert [event.delta for event in events if isinstance(event, TextDelta)] == ["a", "b", "c"]


async def test_a_call_streams_its_arguments_and_ends_as_tool_use() -> None:
    provider = ScriptedProvider([call("add", {"a": 1, "b": [2, "x"]}, text="let me see")])
    events = await collect(provider.stream(MODEL, ask("hi"), options()))
    message = check_stream(events)
    assert message.stop_reason == "toolUse"
    assert message.content == (
        TextContent(text="let me see"),
        ToolCall(id="call_0_1", name="add", arguments={"a": 1, "b": [2, "x"]}),
    )
    assert "".join(event.delta for event in events if isinstance(event, ToolCallDelta)) == (
        '{"a": 1, "b": [2, "x"]}'
    )


async def test_blocks_interleave() -> None:
    response = steps(
        Interleave((Thinking("abcd", deltas=2), Text("efgh", deltas=4), Call("t", {"x": 1})))
    )
    events = await collect(ScriptedProvider([response]).stream(MODEL, ask("hi"), options()))
    message = check_stream(events)
    assert [type(block) for block in message.content] == [ThinkingContent, TextContent, ToolCall]
    order = [getattr(event, "content_index", -1) for event in events[1:-1]]
    assert order[:6] == [0, 1, 2, 0, 1, 2]


async def test_call_ids_depend_on_the_conversation_alone() -> None:
    provider = ScriptedProvider(by_turn(calls(Call("a"), Call("b")), call("c"), say("done")))
    first = await settle(provider.stream(MODEL, ask("hi"), options()))
    again = await settle(provider.stream(MODEL, ask("hi"), options()))
    assert first.content == again.content
    later = await settle(provider.stream(MODEL, ask("hi", first), options()))
    assert [block.id for block in later.content if isinstance(block, ToolCall)] == ["call_1_0"]
    end = await settle(provider.stream(MODEL, ask("hi", first, later), options()))
    assert end.content == (TextContent(text="done"),)
    beyond = await settle(provider.stream(MODEL, ask("hi", first, later, end), options()))
    assert (beyond.stop_reason, beyond.error_kind) == ("error", "terminal")


async def test_failures_carry_their_classification_and_what_came_before() -> None:
    provider = ScriptedProvider(
        [
            fail("overloaded", kind="retryable", retry_after_ms=1500),
            fail("cut", after="half of", usage=tokens(3, 1)),
        ]
    )
    events = await collect(provider.stream(MODEL, ask("hi"), options()))
    assert len(events) == 1, "a failure before the first byte has no start"
    message = check_stream(events)
    assert (message.error_message, message.error_kind, message.retry_after_ms) == (
        "overloaded",
        "retryable",
        1500,
    )
    message = await settle(provider.stream(MODEL, ask("hi"), options()))
    assert message.content == (TextContent(text="half of"),)
    assert (message.stop_reason, message.error_kind) == ("error", None)
    assert message.usage == tokens(3, 1)


async def test_an_exception_comes_out_of_the_stream() -> None:
    provider = ScriptedProvider([steps(Text("a"), Raise(ZeroDivisionError("defect")))])
    with pytest.raises(ZeroDivisionError, match="defect"):
        await collect(provider.stream(MODEL, ask("hi"), options()))


async def test_a_list_that_ran_out_is_a_terminal_error() -> None:
    provider = ScriptedProvider([])
    message = await settle(provider.stream(MODEL, ask("hi"), options()))
    assert (message.stop_reason, message.error_kind) == ("error", "terminal")


async def test_a_gate_holds_the_stream_in_the_middle() -> None:
    gate = Gate()
    provider = ScriptedProvider([steps(Text("before"), At(gate), Text("after"))])
    task = asyncio.create_task(settle(provider.stream(MODEL, ask("hi"), options())))
    await gate.reached()
    assert not task.done()
    gate.open()
    message = await task
    assert message.content == (TextContent(text="before"), TextContent(text="after"))


@pytest.mark.parametrize(
    "waiting",
    [
        pytest.param(Delay(3_600), id="delay"),
        pytest.param(At(Gate()), id="gate"),
        pytest.param(Text("x", deltas=1, delay=3_600), id="between deltas"),
    ],
)
async def test_pulling_the_signal_ends_a_waiting_stream_as_aborted(
    waiting: Delay | At | Text,
) -> None:
    controller = AbortController()
    provider = ScriptedProvider([steps(Text("partial"), waiting, Text("never"))])
    task = asyncio.create_task(
        collect(provider.stream(MODEL, ask("hi"), options(signal=controller.signal)))
    )
    for _ in range(20):
        await asyncio.sleep(0)
    assert not task.done()
    controller.abort()
    events = await task
    message = check_stream(events)
    assert isinstance(events[-1], ErrorEvent)
    assert message.stop_reason == "aborted"
    assert message.content[0] == TextContent(text="partial")
    assert all(
        not isinstance(block, TextContent) or block.text != "never" for block in message.content
    )


async def test_a_signal_pulled_before_the_request_sends_nothing() -> None:
    controller = AbortController()
    controller.abort()
    provider = ScriptedProvider([say("never")])
    events = await collect(provider.stream(MODEL, ask("hi"), options(signal=controller.signal)))
    assert [type(event) for event in events] == [ErrorEvent]
    assert check_stream(events).stop_reason == "aborted"


async def test_cancelling_the_reader_is_not_an_abort() -> None:
    gate = Gate()
    provider = ScriptedProvider([steps(At(gate))])
    task = asyncio.create_task(collect(provider.stream(MODEL, ask("hi"), options())))
    await gate.reached()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_streams_are_lazy_and_recorded() -> None:
    provider = ScriptedProvider([say("a")])
    stream = provider.stream(MODEL, ask("hi", system="be brief"), options())
    assert provider.requests == []
    await collect(stream)
    (request,) = provider.requests
    assert request.context.system_prompt == "be brief"
    assert request.context.messages == (UserMessage(content="hi", timestamp=0),)


async def test_hooks_see_the_payload_and_the_response() -> None:
    heard: list[ResponseMetadata] = []

    async def change(payload: JsonValue) -> JsonValue:
        assert isinstance(payload, dict)
        return {**payload, "extra": True}

    provider = ScriptedProvider([say("a")])
    await collect(
        provider.stream(MODEL, ask("hi"), options(on_payload=change, on_response=heard.append))
    )
    (payload,) = provider.payloads
    assert isinstance(payload, dict)
    assert payload["extra"] is True
    assert heard[0].status == 200


async def test_deferred_responses_are_polled_and_dropped_through_the_registry() -> None:
    handle = DeferredHandle(id="r1", provider="scripted", model_id="scripted", api="scripted")
    provider = ScriptedProvider([steps(Defer(handle)), steps(Defer(handle)), say("ready")])
    registry = ModelRegistry([(MODEL, provider)])
    first = await settle(registry.stream(MODEL, ask("hi"), options()))
    assert (first.stop_reason, first.deferred) == ("deferred", handle)
    second = await settle(registry.fetch_deferred(MODEL, handle, options()))
    assert second.deferred == handle
    third = await settle(registry.fetch_deferred(MODEL, handle, options()))
    assert third.content == (TextContent(text="ready"),)
    await registry.cancel_deferred(MODEL, handle, options())
    assert provider.cancelled == [handle]
    assert [request.handle for request in provider.requests] == [None, handle, handle]


async def test_a_function_script_and_an_exact_message() -> None:
    exact = msgspec.structs.replace(
        empty_assistant(provider="p", model="m", api="x", timestamp=5), stop_reason="length"
    )

    def script(request: ScriptedRequest) -> ScriptedResponse:
        return steps(Settle(exact)) if request.index == 0 else steps(Fail("no"))

    provider = ScriptedProvider(script)
    events = await collect(provider.stream(MODEL, ask("hi"), options()))
    assert events[-1] == DoneEvent(message=exact)
    assert isinstance((await collect(provider.stream(MODEL, ask("hi"), options())))[-1], ErrorEvent)


def test_turns_count_assistant_messages_only() -> None:
    answer: AssistantMessage = empty_assistant(provider="p", model="m", api="x", timestamp=0)
    request = ScriptedRequest(9, MODEL, ask("a", answer, "b", answer, "c"), options())
    assert request.turn == 2
