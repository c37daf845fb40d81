"""What the harness asks of a model provider: lazy event streams, settled messages, deferred handles (§0.7)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import msgspec

from harness.codec import JsonValue
from harness.context import AbortSignal
from harness.frames import AssistantMessageEvent
from harness.messages import DeferredHandle, ProviderMessage, ThinkingLevel
from harness.settings import ModelIdentity, StreamOptions
from harness.telemetry import NOOP_TELEMETRY, TelemetryContext


class ModelCost(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """US dollars per million tokens."""

    input: float = 0.0
    output: float = 0.0
    cache_read: float = 0.0
    cache_write: float = 0.0


class Model(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A resolved model. `api` names its wire; token counts bound context and output."""

    provider: str
    model_id: str
    api: str
    context_window: int
    max_tokens: int
    reasoning: bool = False
    images: bool = False
    cost: ModelCost | None = None

    @property
    def identity(self) -> ModelIdentity:
        """The durable name of this model."""
        return ModelIdentity(provider=self.provider, model_id=self.model_id)


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A tool as the model sees it; `parameters` is a JSON Schema of an object."""

    name: str
    description: str
    parameters: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class ModelContext:
    """The input of one request."""

    system_prompt: str
    messages: tuple[ProviderMessage, ...]
    tools: tuple[ToolDefinition, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseMetadata:
    """HTTP facts of a response, known before its body is read."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


PayloadHook: TypeAlias = Callable[[JsonValue], Awaitable[JsonValue]]
ResponseHook: TypeAlias = Callable[[ResponseMetadata], None]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How one request runs.

    `signal` cancels it (the adapter closes the connection and settles as "aborted"),
    `on_payload` may replace the wire payload, `on_response` hears status and headers.
    `session_id` is a cache affinity hint.
    """

    stream: StreamOptions
    thinking_level: ThinkingLevel
    signal: AbortSignal
    telemetry: TelemetryContext = NOOP_TELEMETRY
    on_payload: PayloadHook | None = None
    on_response: ResponseHook | None = None
    session_id: str | None = None


AssistantStream: TypeAlias = AsyncIterator[AssistantMessageEvent]


class Models(Protocol):
    """A registry of models and the requests it can run.

    A stream is lazy: nothing is sent before it is iterated. It ends with exactly one `DoneEvent`
    or `ErrorEvent`; provider failures are events, not exceptions. "aborted" is only ever the
    answer to the request's own signal.
    """

    def resolve(self, identity: ModelIdentity) -> Model | None:
        """The model of that name, or None when it is not registered in this process."""
        ...

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        """One generation request."""
        ...

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        """One poll of a deferred response, without waiting for it to finish."""
        ...

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        """Ask the provider to stop background work; best effort."""
        ...
