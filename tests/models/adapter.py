"""Fixtures for tests of the pydantic-ai adapter: providers that talk to the fault server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from harness.models.protocol import Model, ToolDefinition
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from tests.models.fault_server import FaultServer

ADD = ToolDefinition(
    name="add",
    description="Adds two numbers.",
    parameters={
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
)


def model_for(
    api: Api, *, reasoning: bool = False, context_window: int = 100_000, images: bool = True
) -> Model:
    """A model of the wire under test."""
    names = {
        "openai-chat": ("local", "small"),
        "openai-responses": ("openai", "gpt-5"),
        "anthropic": ("anthropic", "claude-sonnet-5"),
        "google": ("google", "gemini-2.5-flash"),
    }
    provider, model_id = names[api]
    return Model(
        provider=provider,
        model_id=model_id,
        api=api,
        context_window=context_window,
        max_tokens=1_000,
        reasoning=reasoning,
        images=images,
    )


@asynccontextmanager
async def provider_on(
    server: FaultServer, api: Api, path: str = "/v1"
) -> AsyncIterator[PydanticAIProvider]:
    """An adapter whose endpoint is the fault server."""
    provider = PydanticAIProvider(
        Endpoint(api=api, base_url=server.url + path, api_key="k", read_timeout=20)
    )
    try:
        yield provider
    finally:
        await provider.aclose()
