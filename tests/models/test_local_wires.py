"""The adapter against a real language model over HTTP, on the three wires that its server speaks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from app.local_model import MODEL_ID, local_model_server
from harness.context import AbortController
from harness.frames import TextDelta, ToolCallDelta
from harness.messages import (
    AssistantMessage,
    TextContent,
    ToolCall,
    ToolResultMessage,
    plain_text,
    tool_calls,
)
from harness.models.protocol import Model, ToolDefinition
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from harness.settings import StreamOptions
from harness.usage import ZERO_USAGE
from tests.models.support import ask, check_stream, collect, options, settle

pytestmark = pytest.mark.xdist_group("local_model")

APIS: tuple[Api, ...] = ("openai-chat", "openai-responses", "anthropic")
REPORT = ToolDefinition(
    name="slow_report",
    description="Write a report, slowly.",
    parameters={
        "type": "object",
        "properties": {"topic": {"type": "string"}, "seconds": {"type": "integer"}},
        "required": ["topic", "seconds"],
    },
)
PROMPT = 'Use the slow_report tool with topic "harbour lights" and seconds 5.'
STORY = "Tell me a short story about a lighthouse."
SHORT = StreamOptions(temperature=0, max_tokens=64)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url() -> AsyncIterator[str]:
    async with local_model_server(context=1024) as running:
        yield running


@pytest.fixture(params=APIS)
def api(request: pytest.FixtureRequest) -> Api:
    return request.param


@pytest_asyncio.fixture
async def provider(url: str, api: Api) -> AsyncIterator[PydanticAIProvider]:
    made = PydanticAIProvider(Endpoint(api=api, base_url=f"{url}/v1"))
    yield made
    await made.aclose()


def model(api: Api) -> Model:
    return Model(provider="local", model_id=MODEL_ID, api=api, context_window=1_024, max_tokens=256)


async def test_text_streams_in_pieces(provider: PydanticAIProvider, api: Api) -> None:
    events = await collect(provider.stream(model(api), ask(STORY), options(SHORT)))
    message = check_stream(events)
    assert message.stop_reason in ("stop", "length"), message.error_message
    assert sum(isinstance(event, TextDelta) for event in events) >= 20
    assert len(plain_text(message.content)) > 50
    assert message.usage.input > 0
    assert 20 <= message.usage.output <= 64


async def test_a_tool_call_and_the_answer_to_its_result(
    provider: PydanticAIProvider, api: Api
) -> None:
    events = await collect(
        provider.stream(model(api), ask(PROMPT, tools=(REPORT,)), options(SHORT))
    )
    first = check_stream(events)
    assert first.stop_reason == "toolUse", first.error_message
    ((_, call),) = tool_calls(first)
    assert (call.name, call.arguments) == (
        "slow_report",
        {"topic": "harbour lights", "seconds": 5},
    )
    assert any(isinstance(event, ToolCallDelta) for event in events)
    done = ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text="Report on harbour lights: finished after 5 seconds."),),
        is_error=False,
        timestamp=2,
    )
    last = await settle(
        provider.stream(model(api), ask(PROMPT, first, done, tools=(REPORT,)), options(SHORT))
    )
    assert last.stop_reason in ("stop", "length"), last.error_message
    assert plain_text(last.content).strip()
    assert not tool_calls(last)


async def test_a_damaged_conversation_is_taken(provider: PydanticAIProvider, api: Api) -> None:
    orphan = AssistantMessage(
        content=(TextContent(text=""), ToolCall(id="gone|1", name="slow_report", arguments={})),
        api="other",
        provider="other",
        model="other",
        usage=ZERO_USAGE,
        stop_reason="toolUse",
        timestamp=1,
    )
    stray = ToolResultMessage(
        tool_call_id="stray",
        tool_name="slow_report",
        content=(),
        is_error=False,
        timestamp=2,
    )
    context = ask(stray, orphan, "", "What is two plus two?", "Answer in one word.")
    message = await settle(provider.stream(model(api), context, options(SHORT)))
    assert message.stop_reason in ("stop", "length"), message.error_message


async def test_a_prompt_beyond_the_window_is_an_overflow(
    provider: PydanticAIProvider, api: Api
) -> None:
    message = await settle(
        provider.stream(model(api), ask("lighthouse keeper " * 2_000), options(SHORT))
    )
    assert (message.stop_reason, message.error_kind) == ("error", "overflow")


async def test_an_abort_ends_it_at_once(provider: PydanticAIProvider, api: Api) -> None:
    controller = AbortController()
    seen = 0
    last: object = None
    stream = provider.stream(
        model(api), ask(STORY), options(StreamOptions(max_tokens=200), signal=controller.signal)
    )
    async for event in stream:
        last = event
        if isinstance(event, TextDelta):
            seen += 1
            if seen == 3:
                controller.abort()
    message = getattr(last, "message", None)
    assert isinstance(message, AssistantMessage)
    assert message.stop_reason == "aborted"
    assert plain_text(message.content)


async def test_several_at_once(provider: PydanticAIProvider, api: Api) -> None:
    messages = await asyncio.gather(
        *(
            settle(
                provider.stream(model(api), ask(f"Say hello to number {number}."), options(SHORT))
            )
            for number in range(6)
        )
    )
    assert {message.stop_reason for message in messages} <= {"stop", "length"}
