"""Builds pydantic-ai models over one HTTP client, with hooks on the wire of each request (§0.7)."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import ssl
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, assert_never, cast

from harness.codec import JsonValue, encode, foreign_json
from harness.models.protocol import Model, PayloadHook, ResponseHook, ResponseMetadata

if TYPE_CHECKING:
    import httpx2
    from pydantic_ai.models import Model as WireModel

Api: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic", "google"]
REQUEST_HEADER = "x-laneway-request"
_OPENAI_HOSTS = ("api.openai.com", "openai.azure.com")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where and how to reach a provider. Without `base_url` it is the provider's own address.

    `connect_timeout` and `read_timeout` are seconds; the latter is the longest silence between two
    pieces of a stream, not the length of the whole.
    """

    api: Api
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: dict[str, str] = field(default_factory=dict[str, str])
    connect_timeout: float = 10.0
    read_timeout: float = 300.0


@dataclass(slots=True)
class RequestHooks:
    """The hooks of one request, and what came of them."""

    on_payload: PayloadHook | None
    on_response: ResponseHook | None
    failure: Exception | None = None


class Client:
    """The connection pools of an endpoint and the models that use them."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._hooks: dict[str, RequestHooks] = {}
        self._tokens = itertools.count(1)
        self._http = _http_client(endpoint, _hook_flow(self._hooks))
        self._plain_http: httpx2.AsyncClient | None = None
        self._models: dict[tuple[str, bool], WireModel] = {}

    def model(self, model: Model) -> WireModel:
        """The pydantic-ai model for one of ours; its requests may be hooked."""
        return self._model(model, self._http)

    def plain_model(self, model: Model) -> WireModel:
        """The same without hooks on the wire, which batches refuse."""
        if self._plain_http is None:
            self._plain_http = _http_client(self._endpoint, None)
        return self._model(model, self._plain_http)

    @contextlib.contextmanager
    def hooked(self, hooks: RequestHooks) -> Generator[dict[str, str]]:
        """Headers that let the hooks find their request, for the length of the block."""
        token = str(next(self._tokens))
        self._hooks[token] = hooks
        try:
            yield {REQUEST_HEADER: token}
        finally:
            del self._hooks[token]

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()
        if self._plain_http is not None:
            await self._plain_http.aclose()

    def _model(self, model: Model, http: httpx2.AsyncClient) -> WireModel:
        key = (model.model_id, http is self._http)
        found = self._models.get(key)
        if found is None:
            found = self._models[key] = _wire_model(model, self._endpoint, http)
        return found


@functools.cache
def _trust() -> ssl.SSLContext:
    """The certificates to trust, read once: that takes longer than many a request."""
    import httpx2

    return httpx2.create_ssl_context()


def _http_client(endpoint: Endpoint, auth: httpx2.Auth | None) -> httpx2.AsyncClient:
    import httpx2

    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(endpoint.read_timeout, connect=endpoint.connect_timeout),
        # Waiting for a free connection would look like a silent provider.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
        verify=_trust(),
        auth=auth,
        # A redirect would carry a key in a header of its own to wherever it points.
        follow_redirects=False,
    )


def _hook_flow(hooks: dict[str, RequestHooks]) -> httpx2.Auth:
    import httpx2

    class HookFlow(httpx2.Auth):
        """Shows each request's payload and response to its hooks.

        An authentication flow is the one public place of the client that may replace a request
        and still leaves proxies and connection pool as they are.
        """

        async def async_auth_flow(
            self, request: httpx2.Request
        ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
            own = hooks.get(request.headers.pop(REQUEST_HEADER, ""))
            if own is not None and own.on_payload is not None:
                request = await _with_payload(request, own)
            response = yield request
            if own is not None and own.on_response is not None:
                try:
                    own.on_response(ResponseMetadata(response.status_code, dict(response.headers)))
                except Exception as error:
                    own.failure = error
                    raise

    return HookFlow()


async def _with_payload(request: httpx2.Request, hooks: RequestHooks) -> httpx2.Request:
    import httpx2

    assert hooks.on_payload is not None
    try:
        payload: JsonValue = json.loads(await request.aread())
    except ValueError:
        return request
    try:
        replaced = encode(foreign_json(await hooks.on_payload(payload)))
    except Exception as error:
        hooks.failure = error
        raise
    headers = httpx2.Headers(request.headers)
    for name in ("content-length", "transfer-encoding"):
        headers.pop(name, None)
    return httpx2.Request(
        request.method,
        request.url,
        headers=headers,
        content=replaced,
        extensions=request.extensions,
    )


def _wire_model(model: Model, endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    match endpoint.api:
        case "openai-chat":
            return _openai_chat(model, endpoint, http)
        case "openai-responses":
            return _openai_responses(model, endpoint, http)
        case "anthropic":
            return _anthropic(model, endpoint, http)
        case "google":
            return _google(model, endpoint, http)
        case _:
            assert_never(endpoint.api)


def _openai_client(endpoint: Endpoint, http: httpx2.AsyncClient) -> Any:
    from openai import AsyncOpenAI

    class TypedItems(AsyncOpenAI):
        """Names the type of each message item, which OpenAI lets one leave out and others do not."""

        # Any: the type of the options is private to the SDK, which offers this method as a hook.
        async def _prepare_options(self, options: Any) -> Any:
            body = _fields(options.json_data)
            items = body.get("input")
            if isinstance(items, list):
                typed = [_typed(item) for item in cast("list[object]", items)]
                options = options.model_copy(update={"json_data": {**body, "input": typed}})
            return await super()._prepare_options(options)

    return TypedItems(
        base_url=endpoint.base_url,
        # Servers of one's own ask for no key, but the SDK insists on one.
        api_key=endpoint.api_key or "none",
        default_headers=endpoint.headers,
        http_client=http,
        max_retries=0,
    )


def _typed(item: object) -> object:
    fields = _fields(item)
    return {"type": "message", **fields} if "role" in fields and "type" not in fields else item


def _fields(body: object) -> dict[str, object]:
    return cast("dict[str, object]", body) if isinstance(body, dict) else {}


def _is_openai(endpoint: Endpoint) -> bool:
    return endpoint.base_url is None or any(host in endpoint.base_url for host in _OPENAI_HOSTS)


def _openai_chat(model: Model, endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider

    profile = OpenAIModelProfile(
        # A stream that just ends was cut: without this it would count as a complete answer.
        openai_chat_streaming_requires_finish_reason=True
    )
    if not _is_openai(endpoint):
        profile["openai_chat_supports_max_completion_tokens"] = False
    provider = OpenAIProvider(openai_client=_openai_client(endpoint, http))
    return OpenAIChatModel(model.model_id, provider=provider, profile=profile)


def _openai_responses(model: Model, endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(openai_client=_openai_client(endpoint, http))
    return OpenAIResponsesModel(model.model_id, provider=provider)


def _anthropic(model: Model, endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    base_url = endpoint.base_url
    client = AsyncAnthropic(
        # This SDK adds the version to the address itself; the OpenAI ones expect it there.
        base_url=None if base_url is None else base_url.rstrip("/").removesuffix("/v1"),
        api_key=endpoint.api_key or "none",
        default_headers=endpoint.headers,
        http_client=http,
        max_retries=0,
    )
    return AnthropicModel(model.model_id, provider=AnthropicProvider(anthropic_client=client))


def _google(model: Model, endpoint: Endpoint, http: httpx2.AsyncClient) -> WireModel:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    provider = GoogleProvider(
        api_key=endpoint.api_key or "none", base_url=endpoint.base_url, http_client=http
    )
    return GoogleModel(model.model_id, provider=provider)
