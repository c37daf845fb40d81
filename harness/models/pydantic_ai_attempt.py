"""One attempt at a provider: its frames so far, its hooks, and how it settles whatever happens (§3.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from harness.frames import (
    AssistantMessageEvent,
    AssistantMessageFrame,
    DoneEvent,
    ErrorEvent,
    PartialMessage,
)
from harness.messages import (
    AssistantContent,
    AssistantMessage,
    DeferredHandle,
    ErrorKind,
    StopReason,
    ToolCall,
)
from harness.models.protocol import Model, RequestOptions
from harness.models.pydantic_ai_client import RequestHooks
from harness.models.pydantic_ai_errors import describe_failure
from harness.models.settling import aborted, failed
from harness.usage import ZERO_USAGE, Usage

_CONTEXT_STOP = "model_context_window_exceeded"


@dataclass(frozen=True, slots=True)
class Report:
    """What the provider said about an attempt besides its content."""

    usage: Usage = ZERO_USAGE
    response_id: str | None = None


def _nothing() -> Report:
    return Report()


@dataclass(slots=True)
class Attempt:
    """Collects what an attempt yields. `report` is asked when it settles, also in the middle."""

    model: Model
    options: RequestOptions
    now: int
    listener: Callable[[AssistantMessageFrame], None]
    report: Callable[[], Report] = _nothing
    hooks: RequestHooks = field(init=False)
    _partial: PartialMessage = field(default_factory=PartialMessage)

    def __post_init__(self) -> None:
        self.hooks = RequestHooks(self.options.on_payload, self.options.on_response)

    async def run(
        self, work: Callable[[Attempt], Awaitable[AssistantMessageEvent]]
    ) -> AssistantMessageEvent:
        """Do the work and settle. Raises only what a hook raised, and cancellation by the reader."""
        signal = self.options.signal
        try:
            return await work(self)
        except asyncio.CancelledError:
            if not signal.aborted:
                raise
            return self._aborted()
        except Exception as error:  # noqa: BLE001  # whatever a provider library raises is a failed request
            # After an abort the SDK may report a broken connection: the signal knows better.
            if signal.aborted:
                return self._aborted()
            if self.hooks.failure is not None:
                raise self.hooks.failure from None
            failure = describe_failure(error)
            return self.error(failure.message, failure.kind, failure.retry_after_ms)

    def emit(self, frame: AssistantMessageFrame) -> None:
        """Pass a frame on and remember it."""
        self._partial.apply(frame)
        self.listener(frame)

    def settled(self, reason: str | None, details: Mapping[str, object]) -> AssistantMessageEvent:
        """The end of an attempt that the provider completed, by its stop reason."""
        content, usage = self._content(), self.report().usage
        raw = details.get("finish_reason")
        if not content and self._filled_the_window(usage, raw):
            taken = usage.input + usage.cache_read + usage.cache_write
            return self.error(
                f"context window exceeded: {taken} tokens of input for a window of "
                f"{self.model.context_window}",
                "overflow",
            )
        match reason:
            case "stop" | "tool_call":
                calls = any(isinstance(part, ToolCall) for part in content)
                return self._done("toolUse" if calls else "stop")
            case "length":
                return self._done("length")
            case "content_filter":
                refusal = details.get("refusal")
                said = refusal if isinstance(refusal, str) and refusal else f"refused ({raw})"
                return self.error(f"the provider's content filter intervened: {said}", "terminal")
            case None:
                return self.error("the stream ended without a stop reason", "retryable")
            case _:
                return self.error(f"the provider stopped with {raw or reason!r}", "retryable")

    def deferred(self, handle: DeferredHandle) -> DoneEvent:
        """The end of an attempt whose response the provider makes in the background."""
        return DoneEvent(message=self._message("deferred", deferred=handle))

    def error(self, text: str, kind: ErrorKind, retry_after_ms: int | None = None) -> ErrorEvent:
        """The end of an attempt that failed, with what had come until then."""
        report = self.report()
        return failed(
            self.model,
            self.now,
            text,
            kind=kind,
            content=self._content(),
            usage=report.usage,
            retry_after_ms=retry_after_ms,
            response_id=report.response_id,
        )

    def _filled_the_window(self, usage: Usage, raw: object) -> bool:
        taken = usage.input + usage.cache_read + usage.cache_write
        return raw == _CONTEXT_STOP or 0 < self.model.context_window < taken

    def _aborted(self) -> ErrorEvent:
        report = self.report()
        return aborted(
            self.model,
            self.now,
            content=self._content(),
            usage=report.usage,
            response_id=report.response_id,
        )

    def _done(self, stop: StopReason) -> DoneEvent:
        return DoneEvent(message=self._message(stop))

    def _message(
        self, stop: StopReason, deferred: DeferredHandle | None = None
    ) -> AssistantMessage:
        report = self.report()
        return AssistantMessage(
            content=self._content(),
            api=self.model.api,
            provider=self.model.provider,
            model=self.model.model_id,
            usage=report.usage,
            stop_reason=stop,
            timestamp=self.now,
            response_id=report.response_id,
            deferred=deferred,
        )

    def _content(self) -> tuple[AssistantContent, ...]:
        message = self._partial.message()
        return () if message is None else message.content
