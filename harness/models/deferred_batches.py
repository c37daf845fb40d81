"""Batches of one request: half the price for an answer within a day (§3.2 "Deferred")."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from harness.codec import JsonValue, encode_str, foreign_json
from harness.models.healing import HealingTarget, heal
from harness.models.protocol import Model, ModelContext
from harness.models.pydantic_ai_attempt import Attempt
from harness.models.pydantic_ai_client import Client
from harness.models.pydantic_ai_request import to_model_messages, to_parameters, to_settings

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponse
    from pydantic_ai.models import Model as WireModel
    from pydantic_ai.models.batch import Batch

_REQUEST_ID = "request"


@dataclasses.dataclass(frozen=True, slots=True)
class BatchJob:
    """A submitted batch: the provider's id, and what else is needed to ask for it."""

    id: str
    data: Mapping[str, JsonValue]


async def submit_batch(client: Client, attempt: Attempt, context: ModelContext) -> BatchJob:
    """Create a batch of this one request. The payload hook sees the request as it will run."""
    from pydantic_ai.models.batch import BatchRequest

    model = attempt.model
    wire = client.plain_model(model)
    settings = to_settings(model, attempt.options, {})
    # A batch is created with one set of headers, and its requests have no time limits.
    settings.pop("extra_headers", None)
    settings.pop("request_timeout", None)
    messages = heal(context.messages, HealingTarget.of(model))
    encoded = await wire.batch_encode(
        BatchRequest(
            custom_id=_REQUEST_ID,
            messages=to_model_messages(messages, model, wire.system),
            model_settings=settings,
            model_request_parameters=to_parameters(context),
        )
    )
    body = await _hooked(encoded.body, attempt)
    batch = await wire.batch_create([dataclasses.replace(encoded, body=body)])
    created = int(batch.created_at.timestamp() * 1000)
    return BatchJob(id=batch.id, data={"group": batch.group, "createdAt": created})


async def fetch_batch(
    client: Client, model: Model, job_id: str, data: Mapping[str, JsonValue]
) -> Callable[[], ModelResponse] | None:
    """What reads the response of an ended batch, or None while it is under way.

    Reading raises what the request itself failed with, apart from what fetching may raise.
    """
    wire = client.plain_model(model)
    batch = await wire.batch_status(_batch(wire, job_id, data))
    if batch.status != "ended":
        return None
    results = await wire.batch_results(batch)

    def read() -> ModelResponse:
        from pydantic_ai.exceptions import ModelAPIError
        from pydantic_ai.models.batch import BatchRequest

        for result in results:
            if result.custom_id == _REQUEST_ID:
                return wire.batch_decode(result, BatchRequest(custom_id=_REQUEST_ID, messages=[]))
        raise ModelAPIError(wire.model_name, f"batch {job_id} ended without a result")

    return read


async def cancel_batch(
    client: Client, model: Model, job_id: str, data: Mapping[str, JsonValue]
) -> None:
    """Ask for the end of a batch."""
    wire = client.plain_model(model)
    await wire.batch_cancel(_batch(wire, job_id, data))


def _batch(wire: WireModel, job_id: str, data: Mapping[str, JsonValue]) -> Batch:
    from pydantic_ai.models.batch import Batch

    group, created = data.get("group"), data.get("createdAt")
    return Batch(
        id=job_id,
        model_name=wire.model_name,
        provider_name=wire.system,
        group=group if isinstance(group, str) else "",
        status="in_progress",
        created_at=datetime.fromtimestamp(created / 1000 if isinstance(created, int) else 0, UTC),
        request_count=1,
    )


async def _hooked(body: str, attempt: Attempt) -> str:
    hook = attempt.hooks.on_payload
    if hook is None:
        return body
    try:
        return encode_str(foreign_json(await hook(json.loads(body))))
    except Exception as error:
        attempt.hooks.failure = error
        raise
