"""Shapes that providers refuse, each with its healed form; and what healing promises for any shape."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.messages import (
    AssistantMessage,
    ImageContent,
    ProviderMessage,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.models.healing import HealingTarget, heal
from tests.models.shapes import (
    CHAT,
    FOREIGN,
    IMAGE,
    OWN,
    SHAPES,
    TARGET,
    Shape,
    result,
    said,
    use,
    user,
)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_shape_is_healed(shape: Shape) -> None:
    assert heal(shape.given, shape.target) == shape.healed


texts = st.sampled_from(["", " ", "a", "b", "\ud800"])
ids = st.sampled_from(["", "1", "2", "1_2", "x|y", "z" * 50])
inputs = st.lists(st.one_of(texts.map(lambda t: TextContent(text=t)), st.just(IMAGE)), max_size=3)
parts = st.one_of(
    texts.map(lambda t: TextContent(text=t, text_signature=t or None)),
    st.builds(ThinkingContent, thinking=texts, thinking_signature=st.sampled_from([None, "", "s"])),
    ids.map(lambda i: use(i, signature="g")),
)
messages = st.lists(
    st.one_of(
        texts.map(user),
        inputs.map(lambda content: UserMessage(content=tuple(content), timestamp=2)),
        st.builds(
            lambda content, by, stop: said(*content, by=by, stop=stop),
            st.lists(parts, max_size=4),
            st.sampled_from([OWN, FOREIGN, ("local", "small", "openai-chat")]),
            st.sampled_from(["stop", "toolUse", "length", "error", "aborted"]),
        ),
        st.builds(lambda i, content: result(i, *content), ids, inputs),
    ),
    max_size=12,
).map(tuple)
targets = st.sampled_from([TARGET, CHAT, HealingTarget("x", "y", "z", images=False)])


@settings(max_examples=400, deadline=None)
@given(messages, targets)
def test_any_conversation_becomes_acceptable_and_stays_so(
    conversation: tuple[ProviderMessage, ...], target: HealingTarget
) -> None:
    healed = heal(conversation, target)
    assert heal(healed, target) == healed
    if not healed:
        return
    assert isinstance(healed[0], UserMessage)
    seen: set[str] = set()
    waiting: list[ToolCall] = []
    previous: ProviderMessage | None = None
    for message in healed:
        if isinstance(message, ToolResultMessage):
            call = waiting.pop(0)
            assert (message.tool_call_id, message.tool_name) == (call.id, call.name)
            assert message.content
        else:
            assert not waiting, "every call is answered before anything else is said"
            assert type(message) is not type(previous), "roles alternate"
        if isinstance(message, AssistantMessage):
            waiting = [part for part in message.content if isinstance(part, ToolCall)]
            for call in waiting:
                assert call.id
                assert call.id not in seen
                seen.add(call.id)
        for part in message.content if not isinstance(message.content, str) else ():
            if isinstance(part, TextContent):
                assert part.text.strip()
            if isinstance(part, ImageContent):
                assert target.images
                assert target.result_images or not isinstance(message, ToolResultMessage)
        previous = message
    assert not waiting
    assert not isinstance(healed[-1], AssistantMessage)


@settings(max_examples=100, deadline=None)
@given(messages)
def test_nothing_that_was_said_to_the_model_is_lost(
    conversation: tuple[ProviderMessage, ...],
) -> None:
    def spoken(items: tuple[ProviderMessage, ...]) -> int:
        return sum(
            part.text.count("a")
            for message in items
            if isinstance(message, UserMessage)
            for part in (
                (TextContent(text=message.content),)
                if isinstance(message.content, str)
                else message.content
            )
            if isinstance(part, TextContent) and len(part.text) == 1
        )

    users = tuple(message for message in conversation if isinstance(message, UserMessage))
    assert spoken(heal(conversation, TARGET)) >= spoken(users)
