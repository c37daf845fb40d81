"""Conversations that providers refuse: refused as they are, accepted after healing, on every wire."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from harness.models.healing import heal
from harness.models.protocol import Model, ToolDefinition
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from harness.settings import StreamOptions
from tests.models.shapes import SHAPES, Shape
from tests.models.support import ask, options, settle
from tests.real.raw_wire import raw_request
from tests.real.strict_rules import BLIND
from tests.real.strict_server import WIRES, Strictness, Wire, strict_server

C, T, R, A = "openai-chat", "chat-template", "openai-responses", "anthropic"
EVERYWHERE = {C, T, R, A}
# Where each shape of the table is refused; the empty ones are acceptable as they are.
REFUSED_BY: dict[str, set[str]] = {
    "untouched": set(),
    "orphaned call at the end": EVERYWHERE,
    "orphaned call before a prompt": EVERYWHERE,
    "one of two calls orphaned": EVERYWHERE,
    "result without call": EVERYWHERE,
    "result without call in the middle": EVERYWHERE,
    "result before its call": EVERYWHERE,
    "result after a later response": {C, T, A},
    "results out of order": set(),
    "prompt between call and result": {C, T, A},
    "prompt between two results": {C, T, A},
    "two results of one call": {C, T, A},
    "call id repeated in a later turn": {A},
    "call id repeated in one turn": {C, T, A},
    "numbered id already taken": {A},
    "empty call id": EVERYWHERE,
    "result under another tool's name": set(),
    "empty assistant text": {A},
    "assistant of white space only": {T, A},
    "assistant without content": {C, T, A},
    "empty user message": {A},
    "empty user parts": {A},
    "empty result": {A},
    "consecutive user messages": {T},
    "consecutive assistant messages": {T},
    "assistant first": {T, A},
    "assistant last": {T, A},
    "failed response left in": EVERYWHERE,
    "aborted response with its result": set(),
    "own signed thinking stays": set(),
    "thinking without signature": {R, A},
    "thinking and signatures of another provider": {R, A},
    "redacted thinking of another model": EVERYWHERE,
    "another provider's long call id": EVERYWHERE,
    "long ids that become equal": {C, T},
    "merged with a foreign response": {T},
    "images for a blind model": {C, T},
    "image in a result on the chat wire": {C, T},
    "unsigned thinking on the chat wire": {R, A},
    "nothing": EVERYWHERE,
    "nothing that can be sent": {T, A},
}
# Nothing in them can be sent, so no request is ever made of them.
UNSENDABLE = {"nothing", "nothing that can be sent"}
SENDABLE = {name: shape for name, shape in SHAPES.items() if name not in UNSENDABLE}
TOOL = ToolDefinition(
    name="t", description="Does something.", parameters={"type": "object", "properties": {}}
)
NAMES: dict[Api, tuple[str, str]] = {
    "openai-chat": ("local", "small"),
    "openai-responses": ("openai", "gpt-5"),
    "anthropic": ("anthropic", "claude"),
}


def model_for(shape: Shape, api: Api, *, images: bool | None = None) -> Model:
    """The model to which the shape's own responses belong on this wire."""
    provider, model_id = NAMES[api]
    seeing = shape.target.images if images is None else images
    if not seeing and api == "openai-chat" and images is None:
        model_id = BLIND
    return Model(
        provider=provider,
        model_id=model_id,
        api=api,
        context_window=2_048,
        max_tokens=64,
        images=seeing,
    )


def test_every_shape_is_judged_and_thirty_are_refused_by_the_large_providers() -> None:
    assert REFUSED_BY.keys() == SHAPES.keys()
    refused = [name for name in SENDABLE if REFUSED_BY[name] & {C, R, A}]
    assert len(refused) >= 30


@pytest.mark.parametrize("name", SHAPES)
async def test_unhealed_it_is_refused_where_it_should_be(name: str) -> None:
    shape = SHAPES[name]
    refused: set[str] = set()
    async with strict_server() as server, httpx.AsyncClient(base_url=server.url) as client:
        for strictness, wire in WIRES.items():
            body = raw_request(shape.given, wire.api, model_for(shape, wire.api).model_id)
            answer = await client.post(wire.base + wire.path, json=body)
            assert answer.status_code in (200, 400)
            if answer.status_code == 400:
                refused.add(strictness)
    assert refused == REFUSED_BY[name]


@pytest.mark.parametrize("strictness", WIRES)
async def test_healed_it_is_accepted(strictness: Strictness) -> None:
    wire: Wire = WIRES[strictness]
    answers: dict[str, str | None] = {}
    async with strict_server() as server:
        provider = PydanticAIProvider(
            Endpoint(api=wire.api, base_url=server.url + wire.base, api_key="k")
        )
        for name, shape in SENDABLE.items():
            model = model_for(shape, wire.api)
            message = await settle(
                provider.stream(model, ask(*shape.given, tools=(TOOL,)), options())
            )
            if message.stop_reason != "stop":
                answers[name] = message.error_message
        await provider.aclose()
        assert len(server.requests) == len(SENDABLE)
    assert answers == {}


@pytest.mark.parametrize("strictness", WIRES)
async def test_the_healed_form_itself_breaks_no_rule(strictness: Strictness) -> None:
    """Not by grace of the client library: what healing gives is acceptable message by message."""
    wire = WIRES[strictness]
    for shape in SENDABLE.values():
        model = model_for(shape, wire.api)
        target = shape.target.of(model)
        wire.check(raw_request(heal(shape.given, target), wire.api, model.model_id))


@pytest.mark.xdist_group("local_model")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("api", ["openai-chat", "anthropic"])
async def test_healed_it_is_accepted_by_a_real_model_server(local_url: str, api: Api) -> None:
    provider = PydanticAIProvider(Endpoint(api=api, base_url=f"{local_url}/v1"))
    short = StreamOptions(max_tokens=2, temperature=0)
    two_at_once = asyncio.Semaphore(2)

    async def send(shape: Shape) -> str | None:
        # This model takes no images.
        model = model_for(shape, api, images=False)
        async with two_at_once:
            context = ask(*shape.given, tools=(TOOL,))
            message = await settle(provider.stream(model, context, options(short)))
        accepted = message.stop_reason in ("stop", "length", "toolUse")
        return None if accepted else message.error_message or message.stop_reason

    refusals = await asyncio.gather(*(send(shape) for shape in SENDABLE.values()))
    await provider.aclose()
    answers = dict(zip(SENDABLE, refusals, strict=True))
    assert {name: why for name, why in answers.items() if why is not None} == {}
