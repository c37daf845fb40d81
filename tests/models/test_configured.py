"""Models from configuration: what needs saying, what is known, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import InvalidArgument
from harness.messages import plain_text
from harness.models.configured import ConfiguredModels, build_models, parse_models
from harness.models.protocol import Model
from harness.settings import ModelIdentity
from tests.models.fault_server import fault_server
from tests.models.support import ask, options, settle
from tests.models.wires import chat_text

KEYS = {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a", "XAI_API_KEY": "x", "MINE": "secret"}


def build(text: str) -> ConfiguredModels:
    return build_models(parse_models(text), KEYS)


def model(configured: ConfiguredModels, provider: str, model_id: str) -> Model:
    found = configured.registry.resolve(ModelIdentity(provider=provider, model_id=model_id))
    assert found is not None
    return found


def test_well_known_models_need_only_their_names() -> None:
    configured = build(
        """[{"provider": "openai", "modelId": "gpt-4o-mini"},
            {"provider": "anthropic", "modelId": "claude-sonnet-4-5"},
            {"provider": "xai", "modelId": "grok-2-1212"}]"""
    )
    gpt = model(configured, "openai", "gpt-4o-mini")
    assert (gpt.api, gpt.context_window, gpt.max_tokens) == ("openai-responses", 128_000, 16_384)
    assert (gpt.images, gpt.reasoning) == (True, False)
    claude = model(configured, "anthropic", "claude-sonnet-4-5")
    assert (claude.api, claude.max_tokens, claude.reasoning) == ("anthropic", 64_000, True)
    grok = model(configured, "xai", "grok-2-1212")
    assert grok.api == "openai-chat"
    assert grok.context_window == 32_768, "from the price list"
    assert configured.registry.resolve(ModelIdentity(provider="x", model_id="y")) is None


def test_what_is_configured_wins() -> None:
    configured = build(
        """[{"provider": "openai", "modelId": "gpt-4o", "api": "openai-chat", "maxTokens": 100,
             "contextWindow": 2048, "images": false, "reasoning": true,
             "cost": {"input": 1, "output": 2, "cacheRead": 0, "cacheWrite": 0}}]"""
    )
    gpt = model(configured, "openai", "gpt-4o")
    assert (gpt.api, gpt.context_window, gpt.max_tokens) == ("openai-chat", 2048, 100)
    assert (gpt.images, gpt.reasoning) == (False, True)
    assert gpt.cost is not None
    assert gpt.cost.output == 2


def test_a_small_window_leaves_room_for_the_question() -> None:
    configured = build(
        """[{"provider": "local", "modelId": "small", "api": "openai-chat",
             "baseUrl": "http://127.0.0.1:1/v1", "contextWindow": 2048}]"""
    )
    assert model(configured, "local", "small").max_tokens == 512


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "not configured well"),
        ('{"provider": "openai"}', "not configured well"),
        ('[{"provider": "openai"}]', "modelId"),
        ('[{"provider": "openai", "modelId": "m", "baseURL": "x"}]', "baseURL"),
        ('[{"provider": "openai", "modelId": "m", "api": "soap"}]', "api"),
        ('[{"provider": "mine", "modelId": "m"}]', "`api` is needed"),
        (
            '[{"provider": "mine", "modelId": "m", "api": "openai-chat", "baseUrl": "http://x/v1"}]',
            "`contextWindow` is needed",
        ),
        (
            '[{"provider": "mine", "modelId": "m", "api": "openai-chat", "contextWindow": 9}]',
            "`baseUrl` is needed",
        ),
        (
            '[{"provider": "anthropic", "modelId": "claude-x", "api": "openai-chat"}]',
            "`baseUrl` is needed",
        ),
        ('[{"provider": "google", "modelId": "gemini-2.5-pro"}]', "GOOGLE_API_KEY"),
        (
            '[{"provider": "openai", "modelId": "gpt-5", "apiKeyEnv": "ABSENT"}]',
            "ABSENT",
        ),
        (
            '[{"provider": "openai", "modelId": "gpt-4o", "contextWindow": 10, "maxTokens": 11}]',
            "maxTokens",
        ),
        (
            '[{"provider": "openai", "modelId": "gpt-5"}, {"provider": "openai", "modelId": "gpt-5"}]',
            "twice",
        ),
    ],
)
def test_what_cannot_work_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        build(text)


def test_no_key_shows_in_an_endpoint() -> None:
    from harness.models.pydantic_ai_client import Endpoint

    assert "secret" not in repr(Endpoint(api="openai-chat", api_key="secret"))


async def test_a_configured_model_answers_with_its_key_and_headers() -> None:
    async with fault_server() as server:
        server.will(chat_text("ok"), chat_text("ok"))
        configured = build(
            f"""[{{"provider": "mine", "modelId": "a", "api": "openai-chat", "contextWindow": 4096,
                   "baseUrl": "{server.url}/v1", "apiKeyEnv": "MINE", "headers": {{"x-team": "t"}}}},
                 {{"provider": "mine", "modelId": "b", "api": "openai-chat", "contextWindow": 4096,
                   "baseUrl": "{server.url}/v1"}}]"""
        )
        for model_id in ("a", "b"):
            found = model(configured, "mine", model_id)
            message = await settle(configured.registry.stream(found, ask("hi"), options()))
            assert plain_text(message.content) == "ok"
        await configured.aclose()
        first, second = server.requests
    assert first.headers["authorization"] == "Bearer secret"
    assert first.headers["x-team"] == "t"
    assert "secret" not in str(second.headers)


async def test_scripted_models_are_configured_like_others(tmp_path: Path) -> None:
    file = tmp_path / "scripts.json"
    file.write_text('{"order": [{"text": "which one?"}]}')
    configured = build(
        f"""[{{"provider": "scripted", "modelId": "demo"}},
             {{"provider": "scripted", "modelId": "filed", "scripted": {{"file": "{file}", "deltas": 2}}}}]"""
    )
    for model_id, prompt, expected in (
        ("demo", "echo: hello", "hello"),
        ("filed", "order now", "which one?"),
    ):
        found = model(configured, "scripted", model_id)
        message = await settle(configured.registry.stream(found, ask(prompt), options()))
        assert plain_text(message.content) == expected
    await configured.aclose()
