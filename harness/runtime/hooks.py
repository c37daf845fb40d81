"""Hooks: awaited interception points with isolation, order and deterministic aggregation (§5.6)."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from harness.codec import JsonValue
from harness.context import Context
from harness.entries import BranchSummaryPayload, CompactionPayload
from harness.errors import HarnessError, InvalidArgument, OperationKind
from harness.messages import AgentMessage, AssistantMessage, InputContent
from harness.models.protocol import Model
from harness.operation.events import HandlerError
from harness.operation.payloads import BranchPreparation, CompactionPreparation
from harness.operation.state import CompactionReason
from harness.runtime.events import EventBus, isolated
from harness.runtime.hook_calls import HookHandler, HookResult, Registration
from harness.runtime.resources import Resources
from harness.session.line import observe
from harness.settings import StreamOptions, StreamOptionsPatch, apply_patch
from harness.usage import Usage

HookName: TypeAlias = Literal[
    "before_run",
    "before_drive",
    "before_run_end",
    "transform_context",
    "before_request",
    "before_payload",
    "after_response",
    "before_tool",
    "after_tool",
    "before_compaction",
    "before_navigation",
]
StepKind: TypeAlias = Literal["assistant", "deferred", "compaction", "branch_summary"]


@dataclass(frozen=True, slots=True)
class HookEvent:
    """What every hook is told: the lane and the durable operation id."""

    lane: str
    run_id: str


@dataclass(frozen=True, slots=True)
class BeforeDrive(HookEvent):
    """Once per installed pass, before recovery and ordinary work. A failure rejects the pass."""

    operation: OperationKind


@dataclass(frozen=True, slots=True)
class BeforeRun(HookEvent):
    """While a run is starting; return messages to inject after the prompt."""

    prompt: tuple[AgentMessage, ...]
    resources: Resources


@dataclass(frozen=True, slots=True)
class BeforeRunEnd(HookEvent):
    """At a normal finish; return a follow-up text to go on."""

    messages: tuple[AgentMessage, ...]


@dataclass(frozen=True, slots=True)
class TransformContext(HookEvent):
    """Per request; return a `ContextChange`."""

    messages: tuple[AgentMessage, ...]
    system_prompt: str


@dataclass(frozen=True, slots=True)
class ContextChange:
    """Replacement messages or system prompt of one request."""

    messages: tuple[AgentMessage, ...] | None = None
    system_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class BeforeRequest(HookEvent):
    """Per request, before its intent; return a `StreamOptionsPatch`."""

    model: Model
    step: StepKind
    attempt: int
    stream_options: StreamOptions


@dataclass(frozen=True, slots=True)
class BeforePayload(HookEvent):
    """Per request, the provider's wire payload; return a `Payload`."""

    model: Model
    payload: JsonValue


@dataclass(frozen=True, slots=True)
class Payload:
    """A replacement wire payload."""

    payload: JsonValue


@dataclass(frozen=True, slots=True)
class AfterResponse(HookEvent):
    """Per settled response, before it is committed; return a replacement message."""

    status: int | None
    headers: Mapping[str, str]
    message: AssistantMessage


@dataclass(frozen=True, slots=True)
class BeforeTool(HookEvent):
    """After validation, before execution; return a `ToolDecision`. A failure blocks the tool."""

    tool_call_id: str
    tool_name: str
    args: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Block:
    """Refuses a tool call; `terminate` also asks to end the run."""

    reason: str
    terminate: bool = False


@dataclass(frozen=True, slots=True)
class ToolDecision:
    """Replacement arguments, or a block."""

    args: dict[str, JsonValue] | None = None
    block: Block | None = None


@dataclass(frozen=True, slots=True)
class AfterTool(HookEvent):
    """After execution, before the outcome is staged; return a `ToolPatch`."""

    tool_call_id: str
    tool_name: str
    args: dict[str, JsonValue]
    content: tuple[InputContent, ...]
    details: JsonValue
    is_error: bool
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class ToolPatch:
    """Field-by-field replacement of a tool result; None keeps a field."""

    content: tuple[InputContent, ...] | None = None
    details: JsonValue = None
    is_error: bool | None = None
    usage: Usage | None = None
    terminate: bool | None = None


@dataclass(frozen=True, slots=True)
class BeforeCompaction(HookEvent):
    """While deciding; return a `CompactionDecision`."""

    reason: CompactionReason
    preparation: CompactionPreparation
    custom_instructions: str | None


@dataclass(frozen=True, slots=True)
class CompactionDecision:
    """Decline, or supply the compaction; neither selects generation, both is an error."""

    decline: bool = False
    compaction: CompactionPayload | None = None


@dataclass(frozen=True, slots=True)
class BeforeNavigation(HookEvent):
    """While deciding a summarized navigation; return a `NavigationDecision`."""

    target_id: str
    preparation: BranchPreparation
    custom_instructions: str | None


@dataclass(frozen=True, slots=True)
class NavigationDecision:
    """Decline, or supply the summary; neither selects generation, both is an error."""

    decline: bool = False
    summary: BranchSummaryPayload | None = None


class HookFailed(HarnessError):
    """A fail-closed hook raised; the pass or the tool call it guards does not go on."""

    def __init__(self, hook: HookName, cause: BaseException) -> None:
        super().__init__(f"{hook} failed: {type(cause).__name__}: {cause}")
        self.hook = hook


class Hooks:
    """Handlers in registration order. Each sees the aggregate of those before it."""

    def __init__(self, events: EventBus) -> None:
        self._events = events
        self._handlers: dict[HookName, list[Registration]] = {}

    def on(
        self, name: HookName, handler: HookHandler, *, id: str | None = None
    ) -> Callable[[], None]:
        """Register a handler; returns its remover. `id` names it in telemetry only."""
        handlers = self._handlers.setdefault(name, [])
        registered = Registration(handler, id)
        handlers.append(registered)

        def remove() -> None:
            if registered in handlers:
                handlers.remove(registered)

        return remove

    def has(self, name: HookName) -> bool:
        """Whether a hook has handlers."""
        return bool(self._handlers.get(name))

    async def _call(
        self, name: HookName, handler: Registration, event: HookEvent, context: Context
    ) -> Any:
        return await handler.call(name, replace(event, **_copies(event)), context, _result)

    def _report(self, name: HookName, event: HookEvent, error: Exception, context: Context) -> None:
        delivery = self._events.emit_batch(
            (
                HandlerError(
                    error=f"{type(error).__name__}: {error}",
                    stack="".join(traceback.format_exception(error)),
                    kind="hook",
                    name=name,
                    lane=event.lane,
                ),
            ),
            context,
        )
        if delivery is not None:
            observe(delivery)

    async def _each(
        self,
        name: HookName,
        event: HookEvent,
        context: Context,
        consume: Callable[[Any, HookEvent], HookEvent | None],
    ) -> HookEvent:
        # `consume` returns the event for the next handler, or None to stop the pipeline.
        for handler in tuple(self._handlers.get(name, ())):
            try:
                result = await self._call(name, handler, event, context)
                if result is None:
                    continue
                following = consume(result, event)
            except Exception as error:  # noqa: BLE001 -- isolation: one handler's failure skips only that handler
                self._report(name, event, error, context)
                continue
            if following is None:
                break
            event = following
        return event

    async def before_drive(self, event: BeforeDrive, context: Context) -> None:
        """Run the pipeline; raises `HookFailed` at the first failure."""
        for handler in tuple(self._handlers.get("before_drive", ())):
            try:
                await self._call("before_drive", handler, event, context)
            except Exception as error:
                self._report("before_drive", event, error, context)
                raise HookFailed("before_drive", error) from error

    async def before_run(self, event: BeforeRun, context: Context) -> tuple[AgentMessage, ...]:
        """The messages to inject, in order."""
        injected: list[AgentMessage] = []

        def consume(result: Any, current: HookEvent) -> HookEvent:
            messages = tuple(result)
            injected.extend(messages)
            assert isinstance(current, BeforeRun)
            return replace(current, prompt=(*current.prompt, *messages))

        await self._each("before_run", event, context, consume)
        return tuple(injected)

    async def before_run_end(self, event: BeforeRunEnd, context: Context) -> str | None:
        """The latest follow-up text, or None."""
        follow_up: list[str] = []

        def consume(result: Any, current: HookEvent) -> HookEvent:
            follow_up.append(_typed(result, str))
            return current

        await self._each("before_run_end", event, context, consume)
        return follow_up[-1] if follow_up else None

    async def transform_context(
        self, event: TransformContext, context: Context
    ) -> TransformContext:
        """Messages and system prompt of the request."""

        def consume(result: Any, current: HookEvent) -> HookEvent:
            change = _typed(result, ContextChange)
            assert isinstance(current, TransformContext)
            if change.messages is not None:
                current = replace(current, messages=tuple(change.messages))
            if change.system_prompt is not None:
                current = replace(current, system_prompt=change.system_prompt)
            return current

        result = await self._each("transform_context", event, context, consume)
        assert isinstance(result, TransformContext)
        return result

    async def before_request(self, event: BeforeRequest, context: Context) -> StreamOptions:
        """The stream options of the request."""

        def consume(result: Any, current: HookEvent) -> HookEvent:
            patch = _typed(result, StreamOptionsPatch)
            assert isinstance(current, BeforeRequest)
            return replace(current, stream_options=apply_patch(current.stream_options, patch))

        result = await self._each("before_request", event, context, consume)
        assert isinstance(result, BeforeRequest)
        return result.stream_options

    async def before_payload(self, event: BeforePayload, context: Context) -> JsonValue:
        """The wire payload of the request."""

        def consume(result: Any, current: HookEvent) -> HookEvent:
            assert isinstance(current, BeforePayload)
            return replace(current, payload=_typed(result, Payload).payload)

        result = await self._each("before_payload", event, context, consume)
        assert isinstance(result, BeforePayload)
        return result.payload

    async def after_response(self, event: AfterResponse, context: Context) -> AssistantMessage:
        """The message to commit."""

        def consume(result: Any, current: HookEvent) -> HookEvent:
            assert isinstance(current, AfterResponse)
            message = _typed(result, AssistantMessage)
            if message.stop_reason == "pending" or (
                message.stop_reason == "aborted" and current.message.stop_reason != "aborted"
            ):
                raise InvalidArgument(f"after_response may not return {message.stop_reason!r}")
            return replace(current, message=message)

        result = await self._each("after_response", event, context, consume)
        assert isinstance(result, AfterResponse)
        return result.message

    async def before_tool(
        self,
        event: BeforeTool,
        context: Context,
        revalidate: Callable[[dict[str, JsonValue]], dict[str, JsonValue]],
    ) -> dict[str, JsonValue] | Block:
        """Effective arguments, or the first block; fails closed (§5.6)."""
        for handler in tuple(self._handlers.get("before_tool", ())):
            try:
                result = await self._call("before_tool", handler, event, context)
                if result is None:
                    continue
                decision = _typed(result, ToolDecision)
            except Exception as error:  # noqa: BLE001 -- fails closed: the tool is blocked
                self._report("before_tool", event, error, context)
                return Block(reason=f"a before_tool hook failed: {type(error).__name__}")
            if decision.block is not None:
                return decision.block
            if decision.args is not None:
                event = replace(event, args=revalidate(decision.args))
        return event.args

    async def after_tool(self, event: AfterTool, context: Context) -> ToolPatch:
        """The merged patch of all handlers."""
        merged = ToolPatch()

        def consume(result: Any, current: HookEvent) -> HookEvent:
            nonlocal merged
            patch = _typed(result, ToolPatch)
            assert isinstance(current, AfterTool)
            changes = {
                name: new
                for name in ("content", "details", "is_error", "usage")
                if (new := getattr(patch, name)) is not None
            }
            merged = replace(
                merged,
                **changes,
                terminate=merged.terminate if patch.terminate is None else patch.terminate,
            )
            return replace(current, **changes)

        await self._each("after_tool", event, context, consume)
        return merged

    async def before_compaction(
        self, event: BeforeCompaction, context: Context
    ) -> CompactionDecision:
        """The first decline or supplied compaction; neither selects generation."""
        decided: list[CompactionDecision] = []

        def consume(result: Any, current: HookEvent) -> HookEvent | None:
            decision = _typed(result, CompactionDecision)
            if decision.decline and decision.compaction is not None:
                raise InvalidArgument("before_compaction declined and supplied a result")
            if decision.decline or decision.compaction is not None:
                decided.append(decision)
                return None
            return current

        await self._each("before_compaction", event, context, consume)
        return decided[0] if decided else CompactionDecision()

    async def before_navigation(
        self, event: BeforeNavigation, context: Context
    ) -> NavigationDecision:
        """The first decline or supplied summary; neither selects generation."""
        decided: list[NavigationDecision] = []

        def consume(result: Any, current: HookEvent) -> HookEvent | None:
            decision = _typed(result, NavigationDecision)
            if decision.decline and decision.summary is not None:
                raise InvalidArgument("before_navigation declined and supplied a result")
            if decision.decline or decision.summary is not None:
                decided.append(decision)
                return None
            return current

        await self._each("before_navigation", event, context, consume)
        return decided[0] if decided else NavigationDecision()


def _result(result: Any) -> HookResult:
    if result is None:
        return "skipped"
    blocks = isinstance(result, ToolDecision) and result.block is not None
    return "blocked" if blocks else "completed"


def _typed(result: Any, type_: type[Any]) -> Any:
    # Handlers are applications' code: a wrong type must not reach durable state.
    if not isinstance(result, type_):
        raise InvalidArgument(f"a hook returned {type(result).__name__}, not {type_.__name__}")
    return result


def _copies(event: HookEvent) -> dict[str, Any]:
    names: Sequence[str] = ("args", "details", "payload", "headers")
    return {name: isolated(getattr(event, name)) for name in names if hasattr(event, name)}
