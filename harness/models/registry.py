"""A registry that dispatches each model to the provider adapter that serves it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from harness.messages import DeferredHandle
from harness.models.protocol import AssistantStream, Model, ModelContext, RequestOptions
from harness.settings import ModelIdentity


class Provider(Protocol):
    """An adapter for one kind of provider."""

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        """One generation request (see `Models.stream`)."""
        ...

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        """One poll (see `Models.fetch_deferred`)."""
        ...

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        """Best-effort cancellation (see `Models.cancel_deferred`)."""
        ...


class ModelRegistry:
    """Models by identity. Implements the `Models` protocol."""

    def __init__(self, models: Iterable[tuple[Model, Provider]] = ()) -> None:
        self._entries: dict[ModelIdentity, tuple[Model, Provider]] = {}
        for model, provider in models:
            self.register(model, provider)

    def register(self, model: Model, provider: Provider) -> None:
        """Add a model, or replace the one of the same name."""
        self._entries[model.identity] = (model, provider)

    def unregister(self, identity: ModelIdentity) -> None:
        """Forget a model; later requests that captured it fail in-band."""
        self._entries.pop(identity, None)

    def resolve(self, identity: ModelIdentity) -> Model | None:
        entry = self._entries.get(identity)
        return None if entry is None else entry[0]

    def models(self) -> tuple[Model, ...]:
        """All registered models."""
        return tuple(model for model, _ in self._entries.values())

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        return self._provider(model).stream(model, context, options)

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        return self._provider(model).fetch_deferred(model, handle, options)

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        await self._provider(model).cancel_deferred(model, handle, options)

    def _provider(self, model: Model) -> Provider:
        return self._entries[model.identity][1]
