"""Small helpers for tests of model providers: collect a stream, check that it is well formed."""

from __future__ import annotations

from collections.abc import AsyncIterator

from harness.context import AbortController, AbortSignal
from harness.frames import (
    AssistantMessageEvent,
    DoneEvent,
    ErrorEvent,
    PartialMessage,
    StartFrame,
    TextEnd,
    TextStart,
    ThinkingEnd,
    ThinkingStart,
    ToolCallEnd,
    ToolCallStart,
    event_to_frame,
)
from harness.messages import AssistantMessage, ProviderMessage, ThinkingLevel, UserMessage
from harness.models.protocol import (
    ModelContext,
    PayloadHook,
    RequestOptions,
    ResponseHook,
    ToolDefinition,
)
from harness.settings import StreamOptions


def ask(
    *messages: str | ProviderMessage, system: str = "", tools: tuple[ToolDefinition, ...] = ()
) -> ModelContext:
    """A request whose strings are user messages."""
    return ModelContext(
        system,
        tuple(
            UserMessage(content=message, timestamp=index) if isinstance(message, str) else message
            for index, message in enumerate(messages)
        ),
        tools,
    )


def options(
    stream: StreamOptions | None = None,
    *,
    signal: AbortSignal | None = None,
    thinking: ThinkingLevel = "off",
    on_payload: PayloadHook | None = None,
    on_response: ResponseHook | None = None,
    session_id: str | None = None,
) -> RequestOptions:
    """Request options with everything defaulted."""
    return RequestOptions(
        stream=stream if stream is not None else StreamOptions(),
        thinking_level=thinking,
        signal=signal if signal is not None else AbortController().signal,
        on_payload=on_payload,
        on_response=on_response,
        session_id=session_id,
    )


async def collect(stream: AsyncIterator[AssistantMessageEvent]) -> list[AssistantMessageEvent]:
    """All events of a stream."""
    return [event async for event in stream]


async def settle(stream: AsyncIterator[AssistantMessageEvent]) -> AssistantMessage:
    """The settled message of a stream that is checked to be well formed on the way."""
    return check_stream(await collect(stream))


def check_stream(events: list[AssistantMessageEvent]) -> AssistantMessage:
    """Assert the shape that §3.7 asks of a stream and return its settled message.

    Frames come after one start, blocks open once and close once, exactly one terminal event is
    last, and the frames reduce to the content that was settled.
    """
    assert events, "a stream ends with a terminal event"
    *frames, last = events
    assert isinstance(last, DoneEvent | ErrorEvent)
    assert not any(isinstance(event, DoneEvent | ErrorEvent) for event in frames)
    partial = PartialMessage()
    opened: dict[int, str] = {}
    closed: set[int] = set()
    for position, event in enumerate(frames):
        frame = event_to_frame(event)
        assert frame is not None
        assert isinstance(frame, StartFrame) == (position == 0), "one start, and first"
        partial.apply(frame)
        if isinstance(frame, StartFrame):
            assert frame.partial.stop_reason == "pending"
            continue
        kind = type(frame).__name__.removesuffix("Start").removesuffix("Delta").removesuffix("End")
        if isinstance(frame, TextStart | ThinkingStart | ToolCallStart):
            assert frame.content_index == len(opened), "blocks are numbered as they open"
            opened[frame.content_index] = kind
        assert opened[frame.content_index] == kind
        assert frame.content_index not in closed, "nothing comes after a block's end"
        if isinstance(frame, TextEnd | ThinkingEnd | ToolCallEnd):
            closed.add(frame.content_index)
    message = last.message
    assert message.stop_reason != "pending"
    assert (message.stop_reason in ("error", "aborted")) == isinstance(last, ErrorEvent)
    if isinstance(last, DoneEvent):
        assert closed == set(opened), "every block is closed before the response settles"
    reduced = partial.message()
    if reduced is not None:
        assert reduced.content == message.content
        assert (reduced.provider, reduced.model, reduced.api) == (
            message.provider,
            message.model,
            message.api,
        )
    return message
