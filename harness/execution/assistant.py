"""One approved provider request: build, stream, settle (§5.7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import msgspec

from harness.clock import Clock
from harness.frames import (
    AssistantMessageEvent,
    AssistantMessageFrame,
    DoneEvent,
    ErrorEvent,
    PartialMessage,
    StartFrame,
)
from harness.messages import AgentMessage, AssistantMessage, ProviderMessage, empty_assistant
from harness.models.protocol import (
    AssistantStream,
    Model,
    ModelContext,
    ResponseMetadata,
    ToolDefinition,
)


class StreamObserver(Protocol):
    """Hears the life of a streamed message. Each call is awaited before the stream goes on."""

    async def start(self, message: AssistantMessage, frame: StartFrame | None) -> None:
        """The message began; `frame` is None when the stream ended without a start event."""
        ...

    async def update(self, message: AssistantMessage, frame: AssistantMessageFrame) -> None:
        """The message grew."""
        ...

    async def end(self, message: AssistantMessage) -> None:
        """The message is final."""
        ...


@dataclass(frozen=True, slots=True)
class AssistantRequest:
    """Everything one request needs, already approved.

    `transform` is the request-local context change, `convert` makes provider messages, `request`
    admits and starts the stream, `after_response` ends frame admission and may replace the message.
    """

    model: Model
    system_prompt: str
    tools: tuple[ToolDefinition, ...]
    clock: Clock
    convert: Callable[[tuple[AgentMessage, ...]], Awaitable[tuple[ProviderMessage, ...]]]
    request: Callable[[ModelContext], AssistantStream]
    after_response: Callable[[AssistantMessage], Awaitable[AssistantMessage]]
    observer: StreamObserver
    transform: (
        Callable[[tuple[AgentMessage, ...], str], Awaitable[tuple[tuple[AgentMessage, ...], str]]]
        | None
    ) = None


class ResponseCapture:
    """Keeps the HTTP facts of a response for the after_response hook."""

    def __init__(self) -> None:
        self.metadata = ResponseMetadata()

    def __call__(self, metadata: ResponseMetadata) -> None:
        self.metadata = metadata


async def stream_assistant(
    messages: tuple[AgentMessage, ...], request: AssistantRequest
) -> AssistantMessage:
    """Run the request to its settled message. Provider failures come back as error messages."""
    system_prompt = request.system_prompt
    if request.transform is not None:
        messages, system_prompt = await request.transform(messages, system_prompt)
    converted = await request.convert(messages)
    model_context = ModelContext(
        system_prompt=system_prompt, messages=converted, tools=request.tools
    )
    stream = request.request(model_context)
    settled, started = await consume_stream(stream, request.model, request.clock, request.observer)
    if not started:
        await request.observer.start(settled, None)
    final = await request.after_response(settled)
    await request.observer.end(final)
    return final


async def consume_stream(
    stream: AssistantStream, model: Model, clock: Clock, observer: StreamObserver
) -> tuple[AssistantMessage, bool]:
    """Read a stream to its end; returns the settled message and whether it had started."""
    partial = PartialMessage()
    started = False
    settled: AssistantMessage | None = None
    try:
        async for event in stream:
            settled = _settlement(event)
            if settled is not None:
                break
            assert not isinstance(event, DoneEvent | ErrorEvent)
            partial.apply(event)
            message = partial.message()
            if message is None:
                continue
            if isinstance(event, StartFrame):
                started = True
                await observer.start(message, event)
            else:
                await observer.update(message, event)
    except Exception as error:  # noqa: BLE001 -- an adapter that raises is a provider that failed
        settled = provider_failure(partial, model, clock, error)
    finally:
        await _close(stream)
    if settled is None:
        settled = provider_failure(
            partial, model, clock, RuntimeError("the stream ended without settling")
        )
    return settled, started


async def _close(stream: AssistantStream) -> None:
    # Now, and not when the collector finds it: connections and spans end with the request.
    close: Callable[[], Awaitable[None]] | None = getattr(stream, "aclose", None)
    if close is not None:
        with suppress(Exception):
            await close()


def _settlement(event: AssistantMessageEvent) -> AssistantMessage | None:
    return event.message if isinstance(event, DoneEvent | ErrorEvent) else None


def provider_failure(
    partial: PartialMessage, model: Model, clock: Clock, error: Exception
) -> AssistantMessage:
    """The error message that stands for a request whose adapter raised."""
    base = partial.message() or empty_assistant(
        provider=model.provider, model=model.model_id, api=model.api, timestamp=clock.now_ms()
    )
    return msgspec.structs.replace(
        base,
        stop_reason="error",
        error_message=f"{type(error).__name__}: {error}",
        deferred=None,
    )
