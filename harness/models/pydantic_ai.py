"""The adapter over pydantic-ai: one streamed request, one bill, one connection that an abort closes (§0.7)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING

from harness.clock import Clock, SystemClock
from harness.frames import AssistantMessageEvent, AssistantMessageFrame, StartFrame
from harness.messages import DeferredHandle
from harness.models import deferred
from harness.models.healing import HealingTarget, heal
from harness.models.pricing import usage_of
from harness.models.protocol import AssistantStream, Model, ModelContext, RequestOptions
from harness.models.pydantic_ai_attempt import Attempt, Report
from harness.models.pydantic_ai_client import Client, Endpoint
from harness.models.pydantic_ai_request import to_model_messages, to_parameters, to_settings
from harness.models.pydantic_ai_stream import StreamAssembler
from harness.models.settling import aborted, pending

if TYPE_CHECKING:
    from pydantic_ai.models import StreamedResponse


class PydanticAIProvider:
    """Serves models over one wire at one endpoint. Close it when the process is done with it.

    Provider libraries are imported at the first request, in a thread, because that takes a second.
    A request that asks for deferred generation gets it where the wire has it (`harness.models.
    deferred`), and is an ordinary request elsewhere.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock | None = None) -> None:
        self._endpoint = endpoint
        self._clock = clock if clock is not None else SystemClock()
        self._client: asyncio.Future[Client] | None = None

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        way = deferred.way_for(self._endpoint.api, options.stream.deferred)

        async def work(attempt: Attempt) -> AssistantMessageEvent:
            client = await self._ready()
            if way is not None:
                return await deferred.submit(client, attempt, context, way)
            return await self._stream(client, attempt, context)

        return self._events(model, options, work)

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        async def work(attempt: Attempt) -> AssistantMessageEvent:
            return await deferred.poll(await self._ready(), attempt, handle)

        return self._events(model, options, work)

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        await deferred.cancel(await self._ready(), model, handle)

    async def aclose(self) -> None:
        """Close the connections; a later request opens new ones."""
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(ImportError):
                await (await client).aclose()

    async def _ready(self) -> Client:
        if self._client is None:
            self._client = asyncio.ensure_future(asyncio.to_thread(_load, self._endpoint))
        # Shielded: a request that is cancelled meanwhile must not take the others' import with it.
        return await asyncio.shield(self._client)

    async def _events(
        self,
        model: Model,
        options: RequestOptions,
        work: Callable[[Attempt], Awaitable[AssistantMessageEvent]],
    ) -> AsyncGenerator[AssistantMessageEvent, None]:
        now = self._clock.now_ms()
        if options.signal.aborted:
            yield aborted(model, now)
            return
        queue: asyncio.Queue[AssistantMessageFrame | None] = asyncio.Queue()
        # In a task of its own, so that an abort can cut it off wherever it waits.
        task = asyncio.create_task(Attempt(model, options, now, queue.put_nowait).run(work))

        def over(done: asyncio.Task[AssistantMessageEvent]) -> None:
            queue.put_nowait(None)
            if not done.cancelled():
                # Nobody may be left to hear of it when the reader went away.
                done.exception()

        def stop() -> None:
            task.cancel()

        task.add_done_callback(over)

        remove = options.signal.on_abort(stop)
        try:
            while (frame := await queue.get()) is not None:
                yield frame
            # Cancelled before its first step, the task never came to settle by itself.
            yield aborted(model, now) if task.cancelled() and options.signal.aborted else await task
        finally:
            remove()
            if not task.done():
                # The reader went away: the connection must not outlive it.
                task.cancel()
                await asyncio.wait((task,))

    @staticmethod
    async def _stream(
        client: Client, attempt: Attempt, context: ModelContext
    ) -> AssistantMessageEvent:
        from pydantic_ai.direct import model_request_stream

        model = attempt.model
        wire = client.model(model)
        messages = heal(context.messages, HealingTarget.of(model))
        with client.hooked(attempt.hooks) as headers:
            request = model_request_stream(
                wire,
                to_model_messages(messages, model, wire.system),
                model_settings=to_settings(model, attempt.options, headers),
                model_request_parameters=to_parameters(context),
                instrument=False,
            )
            async with request as response:
                attempt.report = lambda: _report(model, response)
                attempt.emit(StartFrame(partial=pending(model, attempt.now)))
                assembler = StreamAssembler()
                async for event in response:
                    for frame in assembler.feed(event):
                        attempt.emit(frame)
                final = response.get()
                for frame in assembler.finish(final.parts):
                    attempt.emit(frame)
        return attempt.settled(final.finish_reason, final.provider_details or {})


def _report(model: Model, response: StreamedResponse) -> Report:
    usage = usage_of(response.usage, model, response.provider_url, response.provider_details)
    return Report(usage, response.provider_response_id)


def _load(endpoint: Endpoint) -> Client:
    # The price list is wanted at the end of each request, and is slow to import too.
    for library in ("genai_prices", "pydantic_ai.direct"):
        importlib.import_module(library)
    return Client(endpoint)
