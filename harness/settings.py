"""Configuration shapes shared by lanes, operations and the harness (§0.7, §2.3)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from harness.errors import InvalidArgument
from harness.messages import ThinkingLevel

QueueMode: TypeAlias = Literal["all", "one-at-a-time"]
ToolExecution: TypeAlias = Literal["sequential", "parallel"]
ReplayPolicy: TypeAlias = Literal["never", "safe"]
DeferredWindow: TypeAlias = Literal["15m", "1h", "24h"]

MAX_SAFE_INTEGER = 2**53 - 1


class _Durable(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename="camel",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    """Common encoding rules of settings."""


class ModelIdentity(_Durable, frozen=True, kw_only=True):
    """Names a model; the registry resolves it at request time."""

    provider: str
    model_id: str


class LaneConfiguration(_Durable, frozen=True, kw_only=True):
    """Everything a lane's next step uses. Total: a setter replaces the whole value."""

    model: ModelIdentity
    thinking_level: ThinkingLevel
    active_tool_names: tuple[str, ...]


class RetryPolicy(_Durable, frozen=True, kw_only=True):
    """How often a failed provider request is tried again, with exponential delay (milliseconds)."""

    enabled: bool = True
    max_retries: int = 3
    base_delay_ms: int = 2_000


class NormalizedRetryPolicy(_Durable, frozen=True, kw_only=True):
    """The policy as captured in operation state."""

    max_attempts: int
    base_delay_ms: int


class CompactionSettings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """When and how far to compact (tokens).

    Half of a model's window bounds the reserve, and half of the rest what is kept.
    """

    enabled: bool = True
    reserve_tokens: int = 16_384
    keep_recent_tokens: int = 20_000


class DeferredOption(_Durable, frozen=True, kw_only=True):
    """Ask the provider to finish in the background within this window."""

    window: DeferredWindow = "24h"


class StreamOptions(_Durable, frozen=True, kw_only=True):
    """Provider-neutral request options a caller may set.

    `max_tokens` bounds the output, `temperature` is the provider's, `headers` go to the provider,
    `deferred` asks for background generation, `timeout_ms` bounds one request.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    headers: dict[str, str] | None = None
    cache_retention: Literal["none", "short", "long"] | None = None
    timeout_ms: int | None = None
    deferred: bool | DeferredOption | None = None


class StreamOptionsPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A field-by-field change of stream options: UNSET keeps a field, None clears it."""

    temperature: float | None | msgspec.UnsetType = msgspec.UNSET
    max_tokens: int | None | msgspec.UnsetType = msgspec.UNSET
    headers: dict[str, str] | None | msgspec.UnsetType = msgspec.UNSET
    cache_retention: Literal["none", "short", "long"] | None | msgspec.UnsetType = msgspec.UNSET
    timeout_ms: int | None | msgspec.UnsetType = msgspec.UNSET
    deferred: bool | DeferredOption | None | msgspec.UnsetType = msgspec.UNSET


def apply_patch(options: StreamOptions, patch: StreamOptionsPatch) -> StreamOptions:
    """The options with the patch's set fields replaced."""
    changes = {
        name: new
        for name in StreamOptionsPatch.__struct_fields__
        if (new := getattr(patch, name)) is not msgspec.UNSET
    }
    return msgspec.structs.replace(options, **changes) if changes else options


def normalize_retry(policy: RetryPolicy) -> NormalizedRetryPolicy:
    """The captured form; raises `InvalidArgument` for values outside the safe range (§0.7)."""
    _safe_count("maxRetries", policy.max_retries)
    _safe_count("baseDelayMs", policy.base_delay_ms)
    _safe_count("maxRetries + 1", policy.max_retries + 1)
    attempts = policy.max_retries + 1 if policy.enabled else 1
    return NormalizedRetryPolicy(max_attempts=attempts, base_delay_ms=policy.base_delay_ms)


def check_compaction(settings: CompactionSettings) -> CompactionSettings:
    """The settings; raises `InvalidArgument` for token counts outside the safe range."""
    _safe_count("reserveTokens", settings.reserve_tokens)
    _safe_count("keepRecentTokens", settings.keep_recent_tokens)
    return settings


def _safe_count(name: str, number: int) -> None:
    if isinstance(number, bool) or not 0 <= number <= MAX_SAFE_INTEGER:
        raise InvalidArgument(f"{name} must be a non-negative safe integer, not {number!r}")


def retry_delay_ms(policy: NormalizedRetryPolicy, failed_attempt: int) -> int:
    """Milliseconds to wait after attempt number `failed_attempt` (1-based); saturates."""
    exponent = max(0, failed_attempt - 1)
    if policy.base_delay_ms == 0:
        return 0
    if exponent > 53:
        return MAX_SAFE_INTEGER
    return min(policy.base_delay_ms << exponent, MAX_SAFE_INTEGER)


def saturating_add(left: int, right: int) -> int:
    """Sum of two safe integers, capped at the largest safe integer."""
    return min(left + right, MAX_SAFE_INTEGER)
