"""Turns a scripted response into the event stream that a real adapter would produce."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from harness.clock import Clock
from harness.codec import JsonValue
from harness.frames import (
    AssistantMessageEvent,
    AssistantMessageFrame,
    DoneEvent,
    ErrorEvent,
    PartialMessage,
    StartFrame,
    TextDelta,
    TextEnd,
    TextStart,
    ThinkingDelta,
    ThinkingEnd,
    ThinkingStart,
    ToolCallDelta,
    ToolCallEnd,
    ToolCallStart,
)
from harness.messages import (
    AssistantContent,
    AssistantMessage,
    StopReason,
    TextContent,
    ThinkingContent,
    ToolCall,
)
from harness.models.script import (
    At,
    Call,
    Defer,
    Delay,
    Fail,
    Interleave,
    Raise,
    ScriptedRequest,
    ScriptedResponse,
    Settle,
    Text,
    Thinking,
)
from harness.models.settling import aborted, failed, finished_before_abort, pending
from harness.usage import ZERO_USAGE, Usage

_Timed = tuple[float, AssistantMessageFrame]


async def play(
    request: ScriptedRequest, response: ScriptedResponse, clock: Clock
) -> AsyncGenerator[AssistantMessageEvent, None]:
    """The events of one response. Pulling the request's signal ends it as "aborted" at once."""
    signal = request.options.signal
    playing = _Playing(request, response, clock.now_ms())
    opening = StartFrame(partial=playing.message("pending", ()))
    playing.partial.apply(opening)
    if response.start:
        yield opening
    index = 0
    for step in response.steps:
        match step:
            case Delay(seconds=seconds):
                await finished_before_abort(clock.sleep(seconds), signal)
            case At(gate=gate):
                await finished_before_abort(gate.pass_through(), signal)
            case Text() | Thinking() | Call() | Interleave():
                for pause, frame in _frames(step, index, request):
                    if pause > 0:
                        await finished_before_abort(clock.sleep(pause), signal)
                    else:
                        # A real stream lets the loop run between two pieces.
                        await asyncio.sleep(0)
                    if signal.aborted:
                        break
                    playing.partial.apply(frame)
                    yield frame
                index += len(step.blocks) if isinstance(step, Interleave) else 1
            case Fail() | Raise() | Defer() | Settle():
                yield playing.ending(step)
                return
            case _:
                assert_never(step)
        if signal.aborted:
            yield playing.aborted()
            return
    yield playing.done()


@dataclass(slots=True)
class _Playing:
    request: ScriptedRequest
    response: ScriptedResponse
    now: int
    partial: PartialMessage = field(default_factory=PartialMessage)

    def content(self) -> tuple[AssistantContent, ...]:
        message = self.partial.message()
        return () if message is None else message.content

    def usage(self) -> Usage:
        return self.response.usage if self.response.usage is not None else ZERO_USAGE

    def message(
        self, reason: StopReason, content: tuple[AssistantContent, ...]
    ) -> AssistantMessage:
        return msgspec.structs.replace(
            pending(self.request.model, self.now),
            content=content,
            usage=ZERO_USAGE if reason == "pending" else self.usage(),
            stop_reason=reason,
            response_id=self.response.response_id,
        )

    def done(self) -> DoneEvent:
        content = self.content()
        calls = any(isinstance(block, ToolCall) for block in content)
        reason = self.response.stop_reason or ("toolUse" if calls else "stop")
        return DoneEvent(message=self.message(reason, content))

    def aborted(self) -> ErrorEvent:
        return aborted(
            self.request.model,
            self.now,
            content=self.content(),
            usage=self.usage(),
            response_id=self.response.response_id,
        )

    def ending(self, step: Fail | Raise | Defer | Settle) -> AssistantMessageEvent:
        match step:
            case Fail(message=text, kind=kind, retry_after_ms=wait):
                return failed(
                    self.request.model,
                    self.now,
                    text,
                    kind=kind,
                    content=self.content(),
                    usage=self.usage(),
                    retry_after_ms=wait,
                    response_id=self.response.response_id,
                )
            case Raise(error=error):
                raise error
            case Defer(handle=handle):
                message = self.message("deferred", self.content())
                return DoneEvent(message=msgspec.structs.replace(message, deferred=handle))
            case Settle(message=message):
                return DoneEvent(message=message)
            case _:
                assert_never(step)


def _frames(
    step: Text | Thinking | Call | Interleave, index: int, request: ScriptedRequest
) -> Iterator[_Timed]:
    if not isinstance(step, Interleave):
        yield from _block(step, index, request)
        return
    streams = [
        _block(block, index + position, request) for position, block in enumerate(step.blocks)
    ]
    while streams:
        for stream in list(streams):
            timed = next(stream, None)
            if timed is None:
                streams.remove(stream)
            else:
                yield timed


def _block(block: Text | Thinking | Call, index: int, request: ScriptedRequest) -> Iterator[_Timed]:
    match block:
        case Text():
            yield 0.0, TextStart(content_index=index)
            for piece in _cut(block.text, block.deltas):
                yield block.delay, TextDelta(content_index=index, delta=piece)
            text = TextContent(text=block.text, text_signature=block.signature)
            yield 0.0, TextEnd(content_index=index, content=text)
        case Thinking():
            yield 0.0, ThinkingStart(content_index=index)
            for piece in _cut(block.text, block.deltas):
                yield 0.0, ThinkingDelta(content_index=index, delta=piece)
            thought = ThinkingContent(thinking=block.text, thinking_signature=block.signature)
            yield 0.0, ThinkingEnd(content_index=index, content=thought)
        case Call():
            # Derived from the conversation alone, so that another process makes the same id.
            call_id = block.id or f"call_{request.turn}_{index}"
            arguments: dict[str, JsonValue] = dict(block.arguments)
            yield 0.0, ToolCallStart(content_index=index, id=call_id, name=block.name)
            for piece in _cut(json.dumps(arguments), block.deltas):
                yield block.delay, ToolCallDelta(content_index=index, delta=piece)
            call = ToolCall(id=call_id, name=block.name, arguments=arguments)
            yield 0.0, ToolCallEnd(content_index=index, tool_call=call)
        case _:
            assert_never(block)


def _cut(text: str, count: int) -> Iterator[str]:
    """The text in at most `count` pieces that differ by one character at most; none is empty."""
    pieces = max(1, min(count, len(text)))
    size, extra = divmod(len(text), pieces)
    start = 0
    for number in range(pieces):
        end = start + size + (1 if number < extra else 0)
        if end > start:
            yield text[start:end]
        start = end
