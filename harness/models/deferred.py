"""Responses that a provider makes in the background: submit, poll once, cancel (§3.2 "Deferred").

OpenAI has background responses (minutes) and batches (half the price, up to a day), Anthropic has
batches. A batch here holds one request. Its handle names the job; polling needs nothing else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from harness.codec import JsonValue
from harness.frames import AssistantMessageEvent, StartFrame
from harness.messages import DeferredHandle
from harness.models.deferred_batches import cancel_batch, fetch_batch, submit_batch
from harness.models.healing import HealingTarget, heal
from harness.models.pricing import usage_of
from harness.models.protocol import Model, ModelContext
from harness.models.pydantic_ai_attempt import Attempt, Report
from harness.models.pydantic_ai_client import Api, Client
from harness.models.pydantic_ai_errors import is_unreachable
from harness.models.pydantic_ai_request import to_model_messages, to_parameters, to_settings
from harness.models.pydantic_ai_stream import StreamAssembler
from harness.models.settling import pending
from harness.settings import DeferredOption

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model as WireModel

Way: TypeAlias = Literal["background", "batch"]


def way_for(api: Api, wanted: bool | DeferredOption | None) -> Way | None:
    """How a wire defers a request, or None when it answers at once.

    A window of a day is a batch. Shorter ones, and no window at all, are a background response
    where the wire has them.
    """
    if not wanted:
        return None
    day = isinstance(wanted, DeferredOption) and wanted.window == "24h"
    match api:
        case "openai-responses":
            return "batch" if day else "background"
        case "anthropic":
            return "batch"
        case "openai-chat" | "google":
            return None


async def submit(
    client: Client, attempt: Attempt, context: ModelContext, way: Way
) -> AssistantMessageEvent:
    """Hand the request over and settle as "deferred", with a handle to poll by."""
    if way == "batch":
        job = await submit_batch(client, attempt, context)
        attempt.report = lambda: Report(response_id=job.id)
        return attempt.deferred(_handle(attempt.model, job.id, way, job.data))
    response = await _submit_background(client, attempt, context)
    if response.state != "suspended":
        return _ready(attempt, response)
    response_id = response.provider_response_id or ""
    attempt.report = lambda: Report(response_id=response_id)
    return attempt.deferred(_handle(attempt.model, response_id, way, {}))


async def poll(client: Client, attempt: Attempt, handle: DeferredHandle) -> AssistantMessageEvent:
    """Ask once. Pending settles as "deferred" with the same handle, ready with the response.

    A poll that did not get through is pending: the work goes on at the provider, and giving it up
    for a broken connection would pay for it and throw it away.
    """
    try:
        if _way_of(handle) == "batch":
            result = await fetch_batch(client, attempt.model, handle.id, _data(handle))
        else:
            result = await _background_response(client, attempt, handle)
    except Exception as error:
        if attempt.hooks.failure is None and is_unreachable(error):
            return attempt.deferred(handle)
        raise
    if result is None:
        return attempt.deferred(handle)
    return _ready(attempt, result())


async def cancel(client: Client, model: Model, handle: DeferredHandle) -> None:
    """Ask the provider to stop. Best effort: what is over already, or unreachable, is left alone."""
    with contextlib.suppress(Exception):
        if _way_of(handle) == "batch":
            await cancel_batch(client, model, handle.id, _data(handle))
        else:
            wire = client.model(model)
            await wire.cancel_suspended_response(_suspended(wire, handle.id))


def _ready(attempt: Attempt, response: ModelResponse) -> AssistantMessageEvent:
    from pydantic_ai.messages import PartStartEvent

    model = attempt.model
    usage = usage_of(response.usage, model, response.provider_url, response.provider_details)
    attempt.report = lambda: Report(usage, response.provider_response_id)
    attempt.emit(StartFrame(partial=pending(model, attempt.now)))
    assembler = StreamAssembler()
    for index, part in enumerate(response.parts):
        for frame in assembler.feed(PartStartEvent(index=index, part=part)):
            attempt.emit(frame)
    for frame in assembler.finish(response.parts):
        attempt.emit(frame)
    return attempt.settled(response.finish_reason, response.provider_details or {})


def _handle(model: Model, id: str, way: Way, data: Mapping[str, JsonValue]) -> DeferredHandle:
    return DeferredHandle(
        id=id,
        provider=model.provider,
        model_id=model.model_id,
        api=model.api,
        data={"way": way, **data},
    )


def _data(handle: DeferredHandle) -> Mapping[str, JsonValue]:
    return handle.data if isinstance(handle.data, Mapping) else {}


def _way_of(handle: DeferredHandle) -> Way:
    return "batch" if _data(handle).get("way") == "batch" else "background"


async def _submit_background(
    client: Client, attempt: Attempt, context: ModelContext
) -> ModelResponse:
    model = attempt.model
    wire = client.model(model)
    with client.hooked(attempt.hooks) as headers:
        settings = to_settings(model, attempt.options, headers)
        # The provider must keep what it is to be asked for later.
        cast("dict[str, object]", settings).update(openai_background=True, openai_store=True)
        return await wire.request(
            to_model_messages(heal(context.messages, HealingTarget.of(model)), model, wire.system),
            settings,
            to_parameters(context),
        )


async def _background_response(
    client: Client, attempt: Attempt, handle: DeferredHandle
) -> Callable[[], ModelResponse] | None:
    from pydantic_ai.models import ModelRequestParameters

    wire = client.model(attempt.model)
    with client.hooked(attempt.hooks) as headers:
        response = await wire.request(
            [_suspended(wire, handle.id)],
            to_settings(attempt.model, attempt.options, headers),
            ModelRequestParameters(),
        )
    return None if response.state == "suspended" else lambda: response


def _suspended(wire: WireModel, response_id: str) -> ModelResponse:
    from pydantic_ai.messages import ModelResponse

    return ModelResponse(
        parts=[],
        model_name=wire.model_name,
        provider_name=wire.system,
        provider_response_id=response_id,
        provider_details={"background": True},
        state="suspended",
    )
