"""A deterministic provider that plays scripts: for tests, demonstrations and crash experiments."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator

from harness.clock import Clock, SystemClock
from harness.codec import JsonValue, foreign_json
from harness.frames import AssistantMessageEvent
from harness.messages import DeferredHandle
from harness.models.protocol import (
    AssistantStream,
    Model,
    ModelContext,
    RequestOptions,
    ResponseMetadata,
)
from harness.models.script import Script, ScriptedRequest, ScriptedResponse, fail
from harness.models.script_player import play
from harness.models.settling import aborted


def scripted_model(
    model_id: str = "scripted",
    *,
    provider: str = "scripted",
    context_window: int = 128_000,
    max_tokens: int = 8_192,
) -> Model:
    """A model that the scripted provider serves."""
    return Model(
        provider=provider,
        model_id=model_id,
        api="scripted",
        context_window=context_window,
        max_tokens=max_tokens,
    )


class ScriptedProvider:
    """Plays a script; `requests` records everything it was asked.

    `payloads` records what payload hooks made of it, `cancelled` the handles it was told to drop.

    A script is a list, one response per request, or a function of the request. A list that runs
    out answers with a terminal error. Polls of deferred responses consume the same script, with
    `ScriptedRequest.handle` set.
    """

    def __init__(self, script: Script, clock: Clock | None = None) -> None:
        self._script = script
        self._clock = clock if clock is not None else SystemClock()
        self._count = itertools.count()
        self.requests: list[ScriptedRequest] = []
        self.payloads: list[JsonValue] = []
        self.cancelled: list[DeferredHandle] = []

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        return self._run(model, context, options, None)

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        return self._run(model, ModelContext("", ()), options, handle)

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        self.cancelled.append(handle)

    async def _run(
        self,
        model: Model,
        context: ModelContext,
        options: RequestOptions,
        handle: DeferredHandle | None,
    ) -> AsyncGenerator[AssistantMessageEvent, None]:
        request = ScriptedRequest(next(self._count), model, context, options, handle)
        self.requests.append(request)
        if options.on_payload is not None:
            self.payloads.append(await options.on_payload(_payload(request)))
        if options.signal.aborted:
            yield aborted(model, self._clock.now_ms())
            return
        response = self._answer(request)
        if options.on_response is not None:
            options.on_response(ResponseMetadata(status=200, headers={"x-scripted": "1"}))
        async for event in play(request, response, self._clock):
            yield event

    def _answer(self, request: ScriptedRequest) -> ScriptedResponse:
        if callable(self._script):
            return self._script(request)
        if request.index >= len(self._script):
            return fail(f"the script has no response number {request.index}", kind="terminal")
        return self._script[request.index]


def _payload(request: ScriptedRequest) -> JsonValue:
    """What stands for the wire payload, so that payload hooks have something to see."""
    return {
        "model": request.model.model_id,
        "system": request.context.system_prompt,
        "messages": foreign_json(request.context.messages),
        "tools": foreign_json(request.context.tools),
    }
