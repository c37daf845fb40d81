"""Builders of settled responses and the race against the abort signal that every provider needs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec

from harness.context import AbortSignal
from harness.frames import ErrorEvent
from harness.messages import AssistantContent, AssistantMessage, ErrorKind
from harness.models.protocol import Model
from harness.usage import ZERO_USAGE, Usage

ABORTED_TEXT = "Request was aborted"


def pending(model: Model, timestamp: int) -> AssistantMessage:
    """The empty partial that opens a stream."""
    return AssistantMessage(
        content=(),
        api=model.api,
        provider=model.provider,
        model=model.model_id,
        usage=ZERO_USAGE,
        stop_reason="pending",
        timestamp=timestamp,
    )


def failed(
    model: Model,
    timestamp: int,
    message: str,
    *,
    kind: ErrorKind | None = None,
    content: tuple[AssistantContent, ...] = (),
    usage: Usage = ZERO_USAGE,
    retry_after_ms: int | None = None,
    response_id: str | None = None,
) -> ErrorEvent:
    """The end of a request that failed. Without `kind` the message text is classified (§3.7)."""
    return ErrorEvent(
        message=msgspec.structs.replace(
            pending(model, timestamp),
            content=content,
            usage=usage,
            stop_reason="error",
            error_message=message,
            error_kind=kind,
            retry_after_ms=retry_after_ms,
            response_id=response_id,
        )
    )


def aborted(
    model: Model,
    timestamp: int,
    *,
    content: tuple[AssistantContent, ...] = (),
    usage: Usage = ZERO_USAGE,
    response_id: str | None = None,
) -> ErrorEvent:
    """The end of a request whose own signal was pulled, with what had arrived until then."""
    return ErrorEvent(
        message=msgspec.structs.replace(
            pending(model, timestamp),
            content=content,
            usage=usage,
            stop_reason="aborted",
            error_message=ABORTED_TEXT,
            response_id=response_id,
        )
    )


# Any: the awaited work's own yield and send types do not matter here.
async def finished_before_abort(work: Coroutine[Any, Any, object], signal: AbortSignal) -> bool:
    """Run `work` until it ends (True) or the signal is pulled (False: it was cancelled and is over)."""
    if signal.aborted:
        work.close()
        return False
    task = asyncio.ensure_future(work)

    def stop() -> None:
        task.cancel()

    remove = signal.on_abort(stop)
    try:
        await task
    except asyncio.CancelledError:
        if not signal.aborted or _cancel_requested():
            raise
        return False
    finally:
        remove()
    return True


def _cancel_requested() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
