"""The prompt-driven script answers by what the conversation says and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import InvalidArgument
from harness.messages import (
    AssistantMessage,
    ProviderMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    tool_calls,
)
from harness.models.prompted import load_scripts, prompted_script
from harness.models.scripted import ScriptedProvider, scripted_model
from tests.models.support import ask, options, settle

MODEL = scripted_model()


def fresh() -> ScriptedProvider:
    """A provider as a new process would have it."""
    return ScriptedProvider(prompted_script())


def result(call: ToolCall, text: str) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text=text),),
        is_error=False,
        timestamp=9,
    )


async def answer(*messages: str | ProviderMessage) -> AssistantMessage:
    return await settle(fresh().stream(MODEL, ask(*messages), options()))


async def test_echo_and_plain_prompts() -> None:
    assert (await answer("echo: one two")).content == (TextContent(text="one two"),)
    assert (await answer("hello")).content == (TextContent(text="you said: hello"),)
    assert (await answer("echo: one two")).usage.output == 2


async def test_thinking_comes_first() -> None:
    content = (await answer("think: hard")).content
    assert content[0] == ThinkingContent(thinking="hard")


async def test_a_tool_prompt_calls_once_and_then_reports() -> None:
    prompt = 'tool: [{"name": "a", "arguments": {"n": 1}}, {"name": "b"}]'
    first = await answer(prompt)
    calls = [call for _, call in tool_calls(first)]
    assert [(call.name, call.arguments) for call in calls] == [("a", {"n": 1}), ("b", {})]
    second = await answer(prompt, first, result(calls[0], "one"), result(calls[1], "two"))
    assert second.content == (TextContent(text="the tools said: one; two"),)


async def test_steering_does_not_restart_the_script() -> None:
    prompt = 'script: [{"tools": [{"name": "a"}]}, {"text": "second"}]'
    first = await answer(prompt)
    (call,) = (call for _, call in tool_calls(first))
    steered = await answer(prompt, first, result(call, "ok"), "please hurry")
    assert steered.content == (TextContent(text="second"),)
    over = await answer(prompt, first, result(call, "ok"), "please hurry", steered)
    assert over.content == (TextContent(text="the script is over"),)
    anew = await answer(prompt, first, result(call, "ok"), steered, "echo: next")
    assert anew.content == (TextContent(text="next"),)


async def test_failures_and_unreadable_instructions() -> None:
    failed = await answer('fail: {"message": "busy", "kind": "retryable", "retryAfterMs": 5}')
    assert (failed.error_message, failed.error_kind, failed.retry_after_ms) == (
        "busy",
        "retryable",
        5,
    )
    unreadable = await answer("tool: {nonsense")
    assert unreadable.error_kind == "terminal"
    assert "unreadable instruction" in (unreadable.error_message or "")


async def test_scripts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "scripts.json"
    path.write_text('{"order pizza": [{"text": "which one?", "deltas": 3}]}')
    provider = ScriptedProvider(prompted_script(scripts=load_scripts(path)))
    message = await settle(provider.stream(MODEL, ask("order pizza now"), options()))
    assert message.content == (TextContent(text="which one?"),)
    path.write_text('{"order pizza": [{"txet": "typo"}]}')
    with pytest.raises(InvalidArgument, match="scripts file"):
        load_scripts(path)
    with pytest.raises(InvalidArgument, match="scripts file"):
        load_scripts(tmp_path / "absent.json")
