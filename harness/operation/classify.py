"""What a settled response means for the run: pure, first match wins (§3.7)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from harness.errors import InvariantDefect
from harness.messages import AssistantMessage, DeferredHandle, tool_calls
from harness.operation.provider_errors import is_overflow_message, is_retryable_message
from harness.operation.state import CancelRequested, Control
from harness.settings import ModelIdentity


@dataclass(frozen=True, slots=True)
class Cancelled:
    """Cancellation was durable before the settlement."""

    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class Overflow:
    """The request did not fit the model's context."""

    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class Suspended:
    """The provider goes on in the background."""

    message: AssistantMessage
    handle: DeferredHandle


@dataclass(frozen=True, slots=True)
class Failed:
    """The request failed; `retryable` says whether trying the same request again can help.

    `interrupted`: its process stopped after output had arrived, which is no failure of the
    provider and spends none of the retry budget.
    """

    message: AssistantMessage
    retryable: bool
    interrupted: bool = False


@dataclass(frozen=True, slots=True)
class WantsTools:
    """The model calls tools. `truncated`: an output limit may have damaged the arguments."""

    message: AssistantMessage
    truncated: bool


@dataclass(frozen=True, slots=True)
class Finished:
    """The model is done, or reached its genuine output limit."""

    message: AssistantMessage


Classification: TypeAlias = Cancelled | Overflow | Suspended | Failed | WantsTools | Finished


def classify_response(
    message: AssistantMessage,
    control: Control,
    *,
    intended_output_limit: int,
    expected_handle: DeferredHandle | None = None,
    model: ModelIdentity,
    api: str | None,
) -> Classification:
    """Classify a complete response.

    `expected_handle` is the source handle of a poll, which a later pending response must repeat.
    `api` is the wire of the request's model, None where the model is no longer registered.
    Raises `InvariantDefect` for an aborted response without durable cancellation (§9.1, 19).
    """
    if isinstance(control, CancelRequested):
        return Cancelled(_normalize(message, "aborted"))
    if message.stop_reason == "aborted":
        raise InvariantDefect("an aborted response settled while nobody had asked to stop")
    if message.stop_reason == "pending":
        raise InvariantDefect("a response settled while still pending")
    if is_overflow(message, intended_output_limit):
        return Overflow(_normalize(message, "error"))
    if message.stop_reason == "deferred":
        handle = message.deferred
        problem = _handle_problem(handle, expected_handle, model, api)
        if problem is None and handle is not None:
            return Suspended(message, handle)
        failed = msgspec.structs.replace(
            message,
            stop_reason="error",
            error_message=problem,
            error_kind="terminal",
            deferred=None,
        )
        return Failed(failed, retryable=False)
    if message.stop_reason == "error":
        return Failed(message, retryable=is_retryable(message))
    if tool_calls(message):
        return WantsTools(message, truncated=message.stop_reason == "length")
    return Finished(message)


def is_overflow(message: AssistantMessage, intended_output_limit: int) -> bool:
    """Whether the request exceeded the context: reported, matched, or a length stop too early."""
    if message.stop_reason == "error":
        return message.error_kind == "overflow" or (
            message.error_kind is None and is_overflow_message(message.error_message or "")
        )
    if message.stop_reason != "length":
        return False
    # A provider that reports no usage has not said that it stopped early; what it wrote counts.
    reported = message.usage.output > 0 or not message.content
    return reported and message.usage.output < intended_output_limit


def is_retryable(message: AssistantMessage) -> bool:
    """Whether repeating a failed request unchanged can succeed."""
    if message.error_kind is not None:
        return message.error_kind == "retryable"
    return is_retryable_message(message.error_message or "")


def _normalize(message: AssistantMessage, stop_reason: str) -> AssistantMessage:
    if message.stop_reason == stop_reason:
        return message
    reason = message.error_message
    if stop_reason == "error" and reason is None:
        reason = (
            "context window exceeded: the response ended after "
            f"{message.usage.output} output tokens (stop reason {message.stop_reason})"
        )
    if stop_reason == "aborted":
        reason = f"aborted (the provider had settled with {message.stop_reason})" + (
            f": {reason}" if reason else ""
        )
    return msgspec.structs.replace(
        message, stop_reason=stop_reason, error_message=reason, deferred=None
    )


def _handle_problem(
    handle: DeferredHandle | None,
    expected: DeferredHandle | None,
    model: ModelIdentity,
    api: str | None,
) -> str | None:
    if handle is None or not handle.id:
        return "the provider deferred the response without a handle to redeem it"
    if expected is not None:
        if handle != expected:
            return "the provider answered a poll with a different deferred handle"
        return None
    if (handle.provider, handle.model_id) != (model.provider, model.model_id) or (
        api is not None and handle.api != api
    ):
        return "the deferred handle names another model than the request"
    return None
