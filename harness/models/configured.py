"""Models from configuration: each entry names a provider and a model, and what is not known of them (design §8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from harness.clock import Clock, SystemClock
from harness.errors import InvalidArgument
from harness.models.known_models import (
    PROVIDERS,
    KnownModel,
    known_model,
    listed_context_window,
)
from harness.models.prompted import load_scripts, prompted_script
from harness.models.protocol import Model, ModelCost
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from harness.models.registry import ModelRegistry, Provider
from harness.models.scripted import ScriptedProvider

ConfiguredApi: TypeAlias = Api | Literal["scripted"]
_DEFAULT_OUTPUT = 8_192
_OWN_WIRES = frozenset(
    {
        ("openai", "openai-responses"),
        ("openai", "openai-chat"),
        ("anthropic", "anthropic"),
        ("google", "google"),
    }
)
_SCRIPTED = KnownModel(128_000, 8_192)


class ScriptedOptions(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """How a scripted model speaks: seconds before each piece, pieces per text, a scripts file."""

    delta_delay: float = 0.0
    deltas: int | None = None
    file: str | None = None


class ModelEntry(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """One configured model. Costs are US dollars per million tokens, timeouts seconds.

    `api_key_env` names the environment variable that holds the key. Without it, and without a
    `base_url` of one's own, it is the provider's usual one.
    """

    provider: str
    model_id: str
    api: ConfiguredApi | None = None
    base_url: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    context_window: int | None = None
    max_tokens: int | None = None
    reasoning: bool | None = None
    images: bool | None = None
    cost: ModelCost | None = None
    connect_timeout: float = 10.0
    read_timeout: float = 300.0
    scripted: ScriptedOptions | None = None


@dataclass(slots=True)
class ConfiguredModels:
    """The registry of the configured models and the connections behind it."""

    registry: ModelRegistry
    _providers: list[PydanticAIProvider] = field(default_factory=list[PydanticAIProvider])

    async def aclose(self) -> None:
        """Close all connections."""
        for provider in self._providers:
            await provider.aclose()


def parse_models(text: str) -> tuple[ModelEntry, ...]:
    """The entries of a JSON array; raises `InvalidArgument` that says where it is wrong."""
    try:
        return msgspec.json.decode(text, type=tuple[ModelEntry, ...])
    except msgspec.MsgspecError as error:
        raise InvalidArgument(f"the models are not configured well: {error}") from error


def build_models(
    entries: Sequence[ModelEntry], environ: Mapping[str, str], clock: Clock | None = None
) -> ConfiguredModels:
    """Register the entries. Models of one endpoint share its connections.

    Raises `InvalidArgument` for an entry that cannot work: a key that is not in `environ`, a size
    that nobody knows, a name given twice.
    """
    configured = ConfiguredModels(ModelRegistry())
    endpoints: dict[bytes, PydanticAIProvider] = {}
    for entry in entries:
        api = _api(entry)
        model = _model(entry, api)
        if configured.registry.resolve(model.identity) is not None:
            raise _wrong(entry, "it is configured twice")
        if api == "scripted":
            provider: Provider = _scripted(entry, clock)
        else:
            endpoint = _endpoint(entry, api, environ)
            key = msgspec.json.encode(endpoint)
            found = endpoints.get(key)
            if found is None:
                found = endpoints[key] = PydanticAIProvider(endpoint, clock)
            provider = found
        configured.registry.register(model, provider)
    configured._providers.extend(endpoints.values())  # pyright: ignore[reportPrivateUsage]  # its own builder
    return configured


def _wrong(entry: ModelEntry, what: str) -> InvalidArgument:
    return InvalidArgument(f"model {entry.provider}/{entry.model_id}: {what}")


def _api(entry: ModelEntry) -> ConfiguredApi:
    if entry.api is not None:
        return entry.api
    if entry.provider == "scripted":
        return "scripted"
    known = PROVIDERS.get(entry.provider)
    if known is None:
        raise _wrong(entry, "its provider is not a known one, so `api` is needed")
    return known.api


def _model(entry: ModelEntry, api: ConfiguredApi) -> Model:
    known = _SCRIPTED if api == "scripted" else known_model(entry.provider, entry.model_id)
    window = entry.context_window or (known.context_window if known is not None else None)
    if window is None:
        window = listed_context_window(entry.provider, entry.model_id)
    if window is None or window <= 0:
        raise _wrong(entry, "its size is not known, so `contextWindow` is needed")
    limit = entry.max_tokens
    if limit is None:
        # A small window must leave room for what is asked.
        usual = known.max_tokens if known is not None else _DEFAULT_OUTPUT
        limit = min(usual, max(1, window // 4)) if entry.context_window is not None else usual
    if not 0 < limit <= window:
        raise _wrong(entry, f"`maxTokens` must be between 1 and {window}")
    return Model(
        provider=entry.provider,
        model_id=entry.model_id,
        api=api,
        context_window=window,
        max_tokens=limit,
        reasoning=_either(entry.reasoning, known is not None and known.reasoning),
        images=_either(entry.images, known is not None and known.images),
        cost=entry.cost,
    )


def _either(configured: bool | None, known: bool) -> bool:
    return known if configured is None else configured


def _endpoint(entry: ModelEntry, api: Api, environ: Mapping[str, str]) -> Endpoint:
    known = PROVIDERS.get(entry.provider)
    name = entry.api_key_env
    if name is None and entry.base_url is None and known is not None:
        name = known.api_key_env
    key = None
    if name is not None:
        key = environ.get(name)
        if not key:
            raise _wrong(entry, f"the environment has no {name}, which should hold its key")
    base_url = entry.base_url or (known.base_url if known is not None else None)
    if base_url is None and (entry.provider, api) not in _OWN_WIRES:
        # The library's default address is another company's: the key must not go there.
        raise _wrong(entry, f"`baseUrl` is needed for {api}")
    return Endpoint(
        api=api,
        base_url=base_url,
        api_key=key,
        headers=entry.headers,
        connect_timeout=entry.connect_timeout,
        read_timeout=entry.read_timeout,
    )


def _scripted(entry: ModelEntry, clock: Clock | None) -> ScriptedProvider:
    options = entry.scripted if entry.scripted is not None else ScriptedOptions()
    scripts = load_scripts(Path(options.file)) if options.file is not None else None
    script = prompted_script(
        delta_delay=options.delta_delay,
        deltas=options.deltas,
        scripts=scripts,
        now=(clock or SystemClock()).now_ms,
    )
    return ScriptedProvider(script, clock)
