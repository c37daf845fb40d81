"""The span of each request: it continues the client's trace, or begins one (design §13)."""

from __future__ import annotations

from opentelemetry.trace import SpanKind
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from harness.context import BACKGROUND, Context
from harness.telemetry import AttributeValue
from harness.telemetry_otel import OpenTelemetrySpan, Tracing
from workers.tracing import TRACEPARENT

_API = "/v1/"
_TELEMETRY = "laneway.telemetry"
# A method may be any word that a client sends; these are the ones that routes have.
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestSpans:
    """Opens a span for each request of the API. Its name and attributes are the route's, never the
    path's or the query's: those are the client's words."""

    def __init__(self, app: ASGIApp, tracing: Tracing) -> None:
        self._app = app
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(_API):
            await self._app(scope, receive, send)
            return
        telemetry = self._tracing.below(Headers(scope=scope).get(TRACEPARENT))
        if telemetry is None:
            await self._app(scope, receive, send)
            return
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
        span = telemetry.open(
            method if method != "_OTHER" else "HTTP",
            SpanKind.SERVER,
            {
                "http.request.method": method,
                "url.scheme": scope["scheme"],
                "laneway.request.id": scope["laneway.request_id"],
            },
        )
        scope[_TELEMETRY] = span.context
        status: int | None = None

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except BaseException as error:
            _end(span, method, scope, status, type(error).__name__)
            raise
        _end(span, method, scope, status, None)


def _end(
    span: OpenTelemetrySpan, method: str, scope: Scope, status: int | None, error: str | None
) -> None:
    attributes: dict[str, AttributeValue] = {}
    # The router puts the route that it found beside what the server put into the scope.
    template: str | None = getattr(scope.get("route"), "path", None)
    if template is not None:
        attributes["http.route"] = template
        span.rename(f"{method} {template}")
    if status is not None:
        attributes["http.response.status_code"] = status
        if status >= 500:
            error = error or str(status)
    span.end(attributes, error=error)


def traced_context(scope: Scope) -> Context:
    """A background context inside the request's span, if it has one."""
    telemetry = scope.get(_TELEMETRY)
    return BACKGROUND if telemetry is None else BACKGROUND.with_telemetry(telemetry)
