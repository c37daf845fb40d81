"""Requests after compactions, some in the middle of a tool batch: a real server takes them, and strict ones."""

from __future__ import annotations

import pytest

from harness.context import BACKGROUND, AbortController
from harness.entries import MessageEntry
from harness.messages import (
    AgentToolResult,
    ToolResultMessage,
    UserMessage,
    plain_text,
    text_result,
    tool_calls,
)
from harness.models.protocol import ModelContext, RequestOptions
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from harness.models.script import Call, ScriptedResponse
from harness.operation.results import NavigationOutcome
from harness.result import Ok
from harness.settings import CompactionSettings, StreamOptions
from harness.telemetry import NOOP_TELEMETRY
from harness.tools.protocol import FunctionTool, ToolCallRequest
from tests.models.support import settle
from tests.real.strict_server import WIRES, Strictness, strict_server
from tests.real.support import Talk, talking

pytestmark = [pytest.mark.xdist_group("local_model"), pytest.mark.timeout(300)]

# About one token a word, for this model's vocabulary too.
REPORT = "The harbour is calm and the lamp of the old lighthouse turns slowly at night. "


def look(text: str) -> FunctionTool[None]:
    async def execute(request: ToolCallRequest[None]) -> AgentToolResult:
        return text_result(f"{request.arguments['where']}: {text}")

    return FunctionTool(
        "look",
        "Looks at a place.",
        {
            "type": "object",
            "properties": {"where": {"type": "string"}},
            "required": ["where"],
        },
        execute,
        replay="safe",
    )


def looks_twice_when_asked(context: ModelContext) -> ScriptedResponse | None:
    """Two calls in one response as the answer to a prompt that asks for it; else the model speaks."""
    last = context.messages[-1]
    if isinstance(last, UserMessage) and "Look around" in plain_text(last.content):
        calls = (Call("look", {"where": "north"}), Call("look", {"where": "south"}))
        return ScriptedResponse(calls)
    return None


async def accepted_by_the_strict(talk: Talk, context: ModelContext, strictness: Strictness) -> None:
    """The very same request, sent to the server that refuses what the providers refuse."""
    wire = WIRES[strictness]
    async with strict_server() as server:
        provider = PydanticAIProvider(
            Endpoint(api=wire.api, base_url=server.url + wire.base, api_key="k")
        )
        options = RequestOptions(StreamOptions(), "off", AbortController().signal, NOOP_TELEMETRY)
        message = await settle(provider.stream(talk.model, context, options))
        await provider.aclose()
        assert (message.stop_reason, server.refusals) == ("stop", [])


STRICT: dict[Api, tuple[Strictness, ...]] = {
    "openai-chat": ("openai-chat", "chat-template"),
    "openai-responses": ("openai-responses",),
    "anthropic": ("anthropic",),
}


@pytest.mark.parametrize("api", STRICT)
async def test_two_compactions_in_the_middle_of_tool_batches_and_then_a_request(
    local_url: str, api: Api
) -> None:
    settings = CompactionSettings(reserve_tokens=200, keep_recent_tokens=100)
    async with talking(local_url, api, look(REPORT * 8), compaction=settings, window=960) as talk:
        talk.provider.takeover = looks_twice_when_asked
        assert (await talk.say(f"Remember this. {REPORT * 26}")).kind == "completed"
        for _ in range(2):
            outcome = await talk.say("Look around and tell me what you see.")
            assert outcome.kind == "completed"
        first, second = talk.compactions()
        entries = {entry.id: entry for entry in talk.entries()}
        for compaction in (first, second):
            before = entries[compaction.parent_id or ""]
            assert isinstance(before, MessageEntry)
            assert isinstance(before.message, ToolResultMessage), "right after the batch"
            call, *results = compaction.retained_tail
            assert [part.id for _, part in tool_calls(call)] == [  # pyright: ignore[reportArgumentType]
                message.tool_call_id
                for message in results
                if isinstance(message, ToolResultMessage)
            ]
            assert len(results) == 2
            assert compaction.summary
        assert any("<earlier-summary>" in _asked(context) for context in talk.provider.summaries)
        assert {message.stop_reason for message in talk.responses()} <= {
            "stop",
            "length",
            "toolUse",
        }
        # The server said what came after the second compaction.
        last = entries[_leaf(talk)]
        assert isinstance(last, MessageEntry)
        assert last.seq > second.seq
        request = talk.provider.answered[-1]
        assert "<summary>" in plain_text(request.messages[0].content)
        for strictness in STRICT[api]:
            await accepted_by_the_strict(talk, request, strictness)


@pytest.mark.parametrize(
    ("api", "numbers", "compactions"),
    [
        ("openai-chat", 380, 1),
        ("anthropic", 380, 1),
        # So much that the threshold acts first, by an estimate that then turns out too low.
        ("openai-chat", 800, 2),
    ],
)
async def test_an_output_that_the_server_refuses_is_shortened_and_the_run_goes_on(
    local_url: str, api: Api, numbers: int, compactions: int
) -> None:
    # Digits take this model one token each: four times what the estimate says.
    digits = " ".join(str(number) for number in range(1_000, 1_000 + numbers))
    settings = CompactionSettings(reserve_tokens=1_000, keep_recent_tokens=100)
    async with talking(local_url, api, look(digits), compaction=settings) as talk:
        talk.provider.takeover = looks_twice_when_asked
        outcome = await talk.say("Look around and tell me what you see.")
        assert outcome.kind == "completed", outcome.error
        refused = [m for m in talk.responses() if m.error_kind == "overflow"]
        assert len(refused) == 1, "the server itself refused a request"
        assert len(talk.compactions()) == compactions
        last = talk.compactions()[-1]
        kept = [m for m in last.retained_tail if isinstance(m, ToolResultMessage)]
        assert len(kept) == 2
        assert all("characters left out" in plain_text(message.content) for message in kept)
        whole = [
            plain_text(entry.message.content)
            for entry in talk.entries()
            if isinstance(entry, MessageEntry) and isinstance(entry.message, ToolResultMessage)
        ]
        assert whole == [f"north: {digits}", f"south: {digits}"], "the tree keeps all of it"


@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
async def test_a_prompt_larger_than_the_window_fails_and_the_next_one_goes_on(
    local_url: str, api: Api
) -> None:
    settings = CompactionSettings(reserve_tokens=200, keep_recent_tokens=200)
    async with talking(local_url, api, compaction=settings) as talk:
        assert (await talk.say("Say hello.")).kind == "completed"
        outcome = await talk.say("lighthouse keeper " * 6_000)
        assert outcome.kind == "failed"
        assert outcome.error is not None
        assert outcome.error.code == "context_overflow"
        assert "does not fit the model's context" in outcome.error.message
        assert len(talk.responses()) == 2, "asked once, not again and again"
        assert talk.compactions() == [], "nothing was given up for it"
        assert (await talk.say("Say hello again.")).kind == "completed"
        assert len(talk.compactions()) == 1


async def test_a_branch_that_is_larger_than_the_window_is_summarized(local_url: str) -> None:
    settings = CompactionSettings(enabled=False)
    async with talking(local_url, "openai-chat", look(REPORT * 400), compaction=settings) as talk:
        talk.provider.takeover = looks_twice_when_asked
        assert (await talk.say("Say hello.")).kind == "completed"
        back = _leaf(talk)
        assert (await talk.say("Look around, please.")).kind == "failed", "compaction is off"
        moved = await talk.harness.navigate(back, BACKGROUND, summarize=True)
        assert isinstance(moved, Ok), moved
        assert isinstance(moved.value, NavigationOutcome)
        assert moved.value.kind == "completed", moved.value
        assert (await talk.say("Say hello again.")).kind == "completed"


def _asked(context: ModelContext) -> str:
    return plain_text(context.messages[-1].content)


def _leaf(talk: Talk) -> str:
    return talk.entries()[-1].id
