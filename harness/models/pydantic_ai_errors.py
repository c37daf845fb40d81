"""Turns what pydantic-ai raises into the text and class of a failed request (§3.7)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from harness.codec import valid_unicode
from harness.messages import ErrorKind
from harness.operation.provider_errors import is_overflow_message, is_retryable_message

_MAX_TEXT = 4_000
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 499})
_NOT_IMPLEMENTED = 501


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request failed, what that means, and how long the provider asks to wait (milliseconds)."""

    message: str
    kind: ErrorKind
    retry_after_ms: int | None = None


def describe_failure(error: Exception) -> Failure:
    """The failure that an exception of an adapter, its SDK or its transport stands for."""
    text = _text(error)
    return Failure(message=text, kind=_kind(error, text), retry_after_ms=_retry_after_ms(error))


def is_unreachable(error: Exception) -> bool:
    """Whether a request did not get through for the moment, apart from what it asked about."""
    from pydantic_ai import exceptions

    connection = exceptions.ModelConnectionError | exceptions.ModelRequestTimeout | OSError
    if isinstance(error, connection) or _is_transport(error) or _is_garbled(error):
        return True
    return (
        isinstance(error, exceptions.ModelHTTPError) and describe_failure(error).kind == "retryable"
    )


def _kind(error: Exception, text: str) -> ErrorKind:
    from pydantic_ai import exceptions

    if isinstance(error, exceptions.ModelContextWindowExceededError) or is_overflow_message(text):
        return "overflow"
    match error:
        case exceptions.ModelQuotaExceededError():
            # A limit that names the time of its end is a rate limit, whatever it is called.
            return "retryable" if is_retryable_message(text) else "terminal"
        case (
            exceptions.ModelRateLimitError()
            | exceptions.ModelUnavailableError()
            | exceptions.ModelConnectionError()
            | exceptions.ModelRequestTimeout()
        ):
            return "retryable"
        case exceptions.ModelHTTPError(status_code=status):
            return _by_status(status, text)
        case exceptions.ModelServerError():
            return "retryable"
        case exceptions.ModelRequestRejectedError() | exceptions.UserError():
            return "terminal"
        case exceptions.UnexpectedModelBehavior() | OSError():
            # The answer was cut or garbled on the way, or the connection broke below the SDK.
            return "retryable"
        case _:
            passing = _is_transport(error) or _is_garbled(error) or is_retryable_message(text)
            return "retryable" if passing else "terminal"


def _by_status(status: int, text: str) -> ErrorKind:
    if status in _RETRYABLE_STATUS or (status >= 500 and status != _NOT_IMPLEMENTED):
        return "retryable"
    # Gateways wrap the error of what is behind them in a status of their own.
    return "retryable" if status == 400 and is_retryable_message(text) else "terminal"


def _is_transport(error: Exception) -> bool:
    return any(
        base.__module__.partition(".")[0] in ("httpx", "httpx2", "httpcore", "httpcore2", "h11")
        for base in type(error).__mro__
    )


def _is_garbled(error: Exception) -> bool:
    """Whether what the provider sent was no JSON: proxies answer so when what is behind them fails."""
    return isinstance(error.__cause__, json.JSONDecodeError | UnicodeDecodeError)


def _retry_after_ms(error: Exception) -> int | None:
    seconds = getattr(error, "retry_after", None)
    if not isinstance(seconds, int | float) or not 0 <= seconds < 1e9:
        return None
    return int(seconds * 1000)


def _text(error: Exception) -> str:
    body = getattr(error, "body", None)
    said = _body_text(body)
    status = getattr(error, "status_code", None)
    code = getattr(error, "provider_error_code", None) or getattr(
        error, "provider_error_type", None
    )
    if said is None:
        # The exception's own text repeats status and body; without a body it is all there is.
        plain = str(error).strip()
        said = plain or type(error).__name__
        if status is not None and not body:
            said = f"HTTP {status}"
    parts = [str(part) for part in (status, code) if part and str(part) not in said]
    text = f"{' '.join(parts)}: {said}" if parts else said
    return valid_unicode(text[:_MAX_TEXT])


def _body_text(body: object) -> str | None:
    if isinstance(body, str):
        return body.strip() or None
    if not isinstance(body, Mapping):
        return None
    fields = cast("Mapping[str, object]", body)
    inner = fields.get("error")
    if isinstance(inner, Mapping | str):
        return _body_text(cast("object", inner))
    for key in ("message", "detail", "msg"):
        said = fields.get(key)
        if isinstance(said, str) and said.strip():
            return said.strip()
    return None
