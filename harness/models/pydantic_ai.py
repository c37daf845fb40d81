"""The adapter over pydantic-ai: one streamed request, one bill, one connection that an abort closes (§0.7)."""

from __future__ import annotations

import asyncio
import importlib
import itertools
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any

from harness.clock import Clock, SystemClock
from harness.frames import (
    AssistantMessageEvent,
    AssistantMessageFrame,
    DoneEvent,
    ErrorEvent,
    PartialMessage,
    StartFrame,
)
from harness.messages import (
    AssistantContent,
    AssistantMessage,
    StopReason,
    ToolCall,
)
from harness.models.healing import HealingTarget, heal
from harness.models.pricing import usage_of
from harness.models.protocol import AssistantStream, Model, ModelContext, RequestOptions
from harness.models.pydantic_ai_client import REQUEST_HEADER, Client, Endpoint, RequestHooks
from harness.models.pydantic_ai_errors import describe_failure
from harness.models.pydantic_ai_request import to_model_messages, to_parameters, to_settings
from harness.models.pydantic_ai_stream import StreamAssembler
from harness.models.settling import aborted, failed, pending
from harness.usage import ZERO_USAGE, Usage

if TYPE_CHECKING:
    from pydantic_ai.models import StreamedResponse

_CONTEXT_STOP = "model_context_window_exceeded"
_Emit = Callable[[AssistantMessageFrame], None]


class PydanticAIProvider:
    """Serves models over one wire at one endpoint. Close it when the process is done with it.

    Provider libraries are imported at the first request, in a thread, because that takes a second.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock | None = None) -> None:
        self._endpoint = endpoint
        self._clock = clock if clock is not None else SystemClock()
        self._client: asyncio.Future[Client] | None = None
        self._tokens = itertools.count(1)

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        return self._events(model, context, options)

    async def aclose(self) -> None:
        """Close the connections; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            await (await client).aclose()

    async def client(self) -> Client:
        """The HTTP client and its models, made once."""
        if self._client is None:
            self._client = asyncio.ensure_future(asyncio.to_thread(_load, self._endpoint))
        # Shielded: a request that is cancelled meanwhile must not take the others' import with it.
        return await asyncio.shield(self._client)

    async def _events(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AsyncGenerator[AssistantMessageEvent, None]:
        if options.signal.aborted:
            yield aborted(model, self._clock.now_ms())
            return
        queue: asyncio.Queue[AssistantMessageFrame | None] = asyncio.Queue()
        request = _Request(self, model, context, options, self._clock.now_ms(), queue.put_nowait)
        task = asyncio.create_task(request.run())
        task.add_done_callback(lambda _: queue.put_nowait(None))

        def stop() -> None:
            task.cancel()

        remove = options.signal.on_abort(stop)
        try:
            while (frame := await queue.get()) is not None:
                yield frame
            yield await task
        finally:
            remove()
            if not task.done():
                # The reader went away: the connection must not outlive it.
                task.cancel()
                await asyncio.wait((task,))

    def token(self) -> str:
        """A name for one request, unique in this process."""
        return str(next(self._tokens))


def _load(endpoint: Endpoint) -> Client:
    # The price list is wanted at the end of each request, and is slow to import too.
    for library in ("genai_prices", "pydantic_ai.direct"):
        importlib.import_module(library)
    return Client(endpoint)


class _Request:
    """One attempt, in a task of its own so that an abort can cut it off wherever it waits."""

    def __init__(
        self,
        provider: PydanticAIProvider,
        model: Model,
        context: ModelContext,
        options: RequestOptions,
        now: int,
        emit: _Emit,
    ) -> None:
        self._provider = provider
        self._model = model
        self._context = context
        self._options = options
        self._now = now
        self._emit_frame = emit
        self._partial = PartialMessage()
        self._response: StreamedResponse | None = None
        self._hooks = RequestHooks(options.on_payload, options.on_response)

    async def run(self) -> AssistantMessageEvent:
        """Send, stream, settle. Raises only what a hook raised, and cancellation by the reader."""
        signal = self._options.signal
        try:
            return await self._stream()
        except asyncio.CancelledError:
            if not signal.aborted:
                raise
            return self._aborted()
        except Exception as error:  # noqa: BLE001  # whatever a provider library raises is a failed request
            # After an abort the SDK may report a broken connection: the signal knows better.
            if signal.aborted:
                return self._aborted()
            if self._hooks.failure is not None:
                raise self._hooks.failure from None
            failure = describe_failure(error)
            return failed(
                self._model,
                self._now,
                failure.message,
                kind=failure.kind,
                content=self._content(),
                usage=self._usage(),
                retry_after_ms=failure.retry_after_ms,
                response_id=self._response_id(),
            )

    async def _stream(self) -> AssistantMessageEvent:
        client = await self._provider.client()
        from pydantic_ai.direct import model_request_stream

        wire = client.model(self._model)
        token = self._provider.token()
        client.hooks[token] = self._hooks
        try:
            messages = heal(self._context.messages, HealingTarget.of(self._model))
            request = model_request_stream(
                wire,
                to_model_messages(messages, self._model, wire.system),
                model_settings=to_settings(self._model, self._options, {REQUEST_HEADER: token}),
                model_request_parameters=to_parameters(self._context),
                instrument=False,
            )
            async with request as response:
                self._response = response
                self._emit(StartFrame(partial=pending(self._model, self._now)))
                assembler = StreamAssembler()
                async for event in response:
                    for frame in assembler.feed(event):
                        self._emit(frame)
                final = response.get()
                for frame in assembler.finish(list(final.parts)):
                    self._emit(frame)
            return self._settled(final.finish_reason, final.provider_details or {})
        finally:
            del client.hooks[token]

    def _emit(self, frame: AssistantMessageFrame) -> None:
        self._partial.apply(frame)
        self._emit_frame(frame)

    def _settled(self, reason: str | None, details: dict[str, Any]) -> AssistantMessageEvent:
        content, usage = self._content(), self._usage()
        calls = any(isinstance(part, ToolCall) for part in content)
        raw = details.get("finish_reason")
        if self._overflowed(content, usage, raw):
            return self._error(
                f"context window exceeded: {usage.input + usage.cache_read + usage.cache_write} "
                f"tokens of input for a window of {self._model.context_window}",
                "overflow",
            )
        stop: StopReason
        match reason:
            case "stop" | "tool_call":
                stop = "toolUse" if calls else "stop"
            case "length":
                stop = "length"
            case "content_filter":
                refusal = details.get("refusal")
                said = refusal if isinstance(refusal, str) and refusal else f"refused ({raw})"
                return self._error(f"the provider's content filter intervened: {said}", "terminal")
            case None:
                return self._error("the stream ended without a stop reason", "retryable")
            case _:
                return self._error(f"the provider stopped with {raw or reason!r}", "retryable")
        message = AssistantMessage(
            content=content,
            api=self._model.api,
            provider=self._model.provider,
            model=self._model.model_id,
            usage=usage,
            stop_reason=stop,
            timestamp=self._now,
            response_id=self._response_id(),
        )
        return DoneEvent(message=message)

    def _overflowed(self, content: tuple[AssistantContent, ...], usage: Usage, raw: object) -> bool:
        """Whether the provider cut the request short for its size, and said nothing of substance."""
        if content:
            return False
        taken = usage.input + usage.cache_read + usage.cache_write
        return raw == _CONTEXT_STOP or 0 < self._model.context_window < taken

    def _error(self, text: str, kind: Any) -> ErrorEvent:
        return failed(
            self._model,
            self._now,
            text,
            kind=kind,
            content=self._content(),
            usage=self._usage(),
            response_id=self._response_id(),
        )

    def _aborted(self) -> ErrorEvent:
        return aborted(
            self._model,
            self._now,
            content=self._content(),
            usage=self._usage(),
            response_id=self._response_id(),
        )

    def _content(self) -> tuple[AssistantContent, ...]:
        message = self._partial.message()
        return () if message is None else message.content

    def _usage(self) -> Usage:
        if self._response is None:
            return ZERO_USAGE
        return usage_of(self._response.usage, self._model, self._response.provider_url)

    def _response_id(self) -> str | None:
        return None if self._response is None else self._response.provider_response_id
