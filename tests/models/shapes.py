"""Conversations that providers refuse, each with the form that healing gives it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.messages import (
    AssistantContent,
    AssistantMessage,
    ImageContent,
    InputContent,
    ProviderMessage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
    ToolResultMessage,
    UserMessage,
)
from harness.models.healing import CONTINUE, NO_OUTPUT, HealingTarget
from harness.models.healing_pairs import NO_RESULT
from harness.usage import ZERO_USAGE

OWN = ("anthropic", "claude", "anthropic")
TARGET = HealingTarget("anthropic", "claude", "anthropic", unsigned_thinking=False)
CHAT = HealingTarget("local", "small", "openai-chat", images=True, result_images=False)
IMAGE = ImageContent(data="aGk=", mime_type="image/png")


def user(*content: str | InputContent) -> UserMessage:
    if len(content) == 1 and isinstance(content[0], str):
        return UserMessage(content=content[0], timestamp=1)
    return UserMessage(
        content=tuple(TextContent(text=c) if isinstance(c, str) else c for c in content),
        timestamp=1,
    )


def said(
    *content: str | AssistantContent,
    by: tuple[str, str, str] = OWN,
    stop: StopReason = "stop",
) -> AssistantMessage:
    return AssistantMessage(
        content=tuple(TextContent(text=c) if isinstance(c, str) else c for c in content),
        provider=by[0],
        model=by[1],
        api=by[2],
        usage=ZERO_USAGE,
        stop_reason=stop,
        timestamp=1,
    )


def use(call_id: str, name: str = "t", signature: str | None = None) -> ToolCall:
    return ToolCall(id=call_id, name=name, arguments={}, thought_signature=signature)


def result(
    call_id: str, *content: str | InputContent, name: str = "t", error: bool = False
) -> ToolResultMessage:
    return ToolResultMessage(
        tool_call_id=call_id,
        tool_name=name,
        content=tuple(TextContent(text=c) if isinstance(c, str) else c for c in content or ("ok",)),
        is_error=error,
        timestamp=1,
    )


def lost(call_id: str) -> ToolResultMessage:
    return result(call_id, NO_RESULT, error=True)


EARLIER = "(Result of an earlier call of the tool t:)"
FOREIGN = ("openai", "gpt", "openai-responses")


@dataclass(frozen=True)
class Shape:
    given: tuple[ProviderMessage, ...]
    healed: tuple[ProviderMessage, ...]
    target: HealingTarget = TARGET


SHAPES = {
    "untouched": Shape(
        (user("a"), said("b", use("1")), result("1"), said("c"), user("d")),
        (user("a"), said("b", use("1")), result("1"), said("c"), user("d")),
    ),
    "orphaned call at the end": Shape(
        (user("a"), said(use("1"))), (user("a"), said(use("1")), lost("1"))
    ),
    "orphaned call before a prompt": Shape(
        (user("a"), said(use("1")), user("b")),
        (user("a"), said(use("1")), lost("1"), user("b")),
    ),
    "one of two calls orphaned": Shape(
        (user("a"), said(use("1"), use("2")), result("2")),
        (user("a"), said(use("1"), use("2")), lost("1"), result("2")),
    ),
    "result without call": Shape((result("9", "old"), user("a")), (user(EARLIER, "old", "a"),)),
    "result without call in the middle": Shape(
        (user("a"), said("b"), result("9", "old"), said("c"), user("d")),
        (user("a"), said("b"), user(EARLIER, "old"), said("c"), user("d")),
    ),
    "result before its call": Shape(
        (user("a"), result("1", "early"), said(use("1")), user("b")),
        (user("a"), said(use("1")), result("1", "early"), user("b")),
    ),
    "result after a later response": Shape(
        (user("a"), said(use("1")), user("b"), said("c"), result("1", "late"), user("d")),
        (user("a"), said(use("1")), result("1", "late"), user("b"), said("c"), user("d")),
    ),
    "results out of order": Shape(
        (user("a"), said(use("1"), use("2")), result("2", "b"), result("1", "a")),
        (user("a"), said(use("1"), use("2")), result("1", "a"), result("2", "b")),
    ),
    "prompt between call and result": Shape(
        (user("a"), said(use("1")), user("hurry"), result("1")),
        (user("a"), said(use("1")), result("1"), user("hurry")),
    ),
    "prompt between two results": Shape(
        (user("a"), said(use("1"), use("2")), result("1"), user("hurry"), result("2")),
        (user("a"), said(use("1"), use("2")), result("1"), result("2"), user("hurry")),
    ),
    "two results of one call": Shape(
        (user("a"), said(use("1")), result("1", "first"), result("1", "second")),
        (user("a"), said(use("1")), result("1", "first")),
    ),
    "call id repeated in a later turn": Shape(
        (user("a"), said(use("1")), result("1", "x"), said(use("1")), result("1", "y")),
        (user("a"), said(use("1")), result("1", "x"), said(use("1_2")), result("1_2", "y")),
    ),
    "call id repeated in one turn": Shape(
        (user("a"), said(use("1"), use("1")), result("1", "x"), result("1", "y")),
        (user("a"), said(use("1"), use("1_2")), result("1", "x"), result("1_2", "y")),
    ),
    "numbered id already taken": Shape(
        (user("a"), said(use("1"), use("1_2"), use("1")), result("1"), result("1_2")),
        (
            user("a"),
            said(use("1"), use("1_2"), use("1_3")),
            result("1"),
            result("1_2"),
            lost("1_3"),
        ),
    ),
    "empty call id": Shape(
        (user("a"), said(use("")), result("", "x")),
        (user("a"), said(use("call")), result("call", "x")),
    ),
    "result under another tool's name": Shape(
        (user("a"), said(use("1", "read")), result("1", name="write")),
        (user("a"), said(use("1", "read")), result("1", name="read")),
    ),
    "empty assistant text": Shape(
        (user("a"), said("", use("1")), result("1")),
        (user("a"), said(use("1")), result("1")),
    ),
    "assistant of white space only": Shape((user("a"), said(" \n")), (user("a"),)),
    "assistant without content": Shape((user("a"), said(), user("b")), (user("a", "b"),)),
    "empty user message": Shape(
        (user("a"), said("b"), user("")), (user("a"), said("b"), user(CONTINUE))
    ),
    "empty user parts": Shape(
        (UserMessage(content=(TextContent(text=" "), TextContent(text="a")), timestamp=1),),
        (UserMessage(content=(TextContent(text="a"),), timestamp=1),),
    ),
    "empty result": Shape(
        (user("a"), said(use("1")), result("1", " ")),
        (user("a"), said(use("1")), result("1", NO_OUTPUT)),
    ),
    "consecutive user messages": Shape((user("a"), user("b"), user("c")), (user("a", "b", "c"),)),
    "consecutive assistant messages": Shape(
        (user("a"), said("b"), said("c", use("1")), result("1")),
        (user("a"), said("b", "c", use("1")), result("1")),
    ),
    "assistant first": Shape((said("b"), user("a")), (user(CONTINUE), said("b"), user("a"))),
    "assistant last": Shape((user("a"), said("b")), (user("a"), said("b"), user(CONTINUE))),
    "failed response left in": Shape(
        (user("a"), said("half", use("1"), stop="error"), user("b")), (user("a", "b"),)
    ),
    "aborted response with its result": Shape(
        (user("a"), said(use("1"), stop="aborted"), result("1", "x"), user("b")),
        (user("a", EARLIER, "x", "b"),),
    ),
    "own signed thinking stays": Shape(
        (
            user("a"),
            said(ThinkingContent(thinking="t", thinking_signature="s"), use("1")),
            result("1"),
        ),
        (
            user("a"),
            said(ThinkingContent(thinking="t", thinking_signature="s"), use("1")),
            result("1"),
        ),
    ),
    "thinking without signature": Shape(
        (user("a"), said(ThinkingContent(thinking="t"), "b"), user("c")),
        (user("a"), said("b"), user("c")),
    ),
    "thinking and signatures of another provider": Shape(
        (
            user("a"),
            said(
                ThinkingContent(thinking="t", thinking_signature="theirs"),
                TextContent(text="b", text_signature="m"),
                use("1", signature="g"),
                by=FOREIGN,
            ),
            result("1"),
        ),
        (user("a"), said(TextContent(text="b"), use("1"), by=FOREIGN), result("1")),
    ),
    "redacted thinking of another model": Shape(
        (
            user("a"),
            said(
                ThinkingContent(thinking="", thinking_signature="theirs", redacted=True),
                by=("anthropic", "claude-other", "anthropic"),
            ),
            user("b"),
        ),
        (user("a", "b"),),
    ),
    "another provider's long call id": Shape(
        (user("a"), said(use("call|" + "x" * 60), by=FOREIGN), result("call|" + "x" * 60)),
        (user("a"), said(use("call_" + "x" * 35), by=FOREIGN), result("call_" + "x" * 35)),
    ),
    "long ids that become equal": Shape(
        (
            user("a"),
            said(use("x" * 50 + "1"), use("x" * 50 + "2"), by=FOREIGN),
            result("x" * 50 + "2", "two"),
            result("x" * 50 + "1", "one"),
        ),
        (
            user("a"),
            said(use("x" * 40), use("x" * 38 + "_2"), by=FOREIGN),
            result("x" * 40, "one"),
            result("x" * 38 + "_2", "two"),
        ),
    ),
    "merged with a foreign response": Shape(
        (
            user("a"),
            said(TextContent(text="b", text_signature="m")),
            said("c", by=FOREIGN),
            user("d"),
        ),
        (user("a"), said("b", "c", by=FOREIGN), user("d")),
    ),
    "images for a blind model": Shape(
        (user("a", IMAGE), said(use("1")), result("1", IMAGE)),
        (
            user("a", "(an image was here; this model does not take images)"),
            said(use("1")),
            result("1", "(an image was here; this model does not take images)"),
        ),
        HealingTarget("anthropic", "claude", "anthropic", images=False),
    ),
    "image in a result on the chat wire": Shape(
        (
            user("a"),
            said(use("1"), use("2"), by=FOREIGN),
            result("1", "see", IMAGE),
            result("2"),
            user("b"),
        ),
        (
            user("a"),
            said(use("1"), use("2"), by=FOREIGN),
            result("1", "see", "(the image follows in the next message)"),
            result("2"),
            user("Images from t:", IMAGE, "b"),
        ),
        CHAT,
    ),
    "unsigned thinking on the chat wire": Shape(
        (
            user("a"),
            said(ThinkingContent(thinking="t"), "b", by=("local", "small", "openai-chat")),
            user("c"),
        ),
        (
            user("a"),
            said(ThinkingContent(thinking="t"), "b", by=("local", "small", "openai-chat")),
            user("c"),
        ),
        CHAT,
    ),
    "nothing": Shape((), ()),
    "nothing that can be sent": Shape((user(""), said("")), ()),
}
