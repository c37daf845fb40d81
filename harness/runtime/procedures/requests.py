"""One provider request as a procedure makes it: options, hooks, context, stream, settled message (§3.7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.codec import JsonValue
from harness.execution.assistant import (
    AssistantRequest,
    ResponseCapture,
    provider_failure,
    stream_assistant,
)
from harness.frames import PartialMessage
from harness.messages import AgentMessage, AssistantMessage, ProviderMessage
from harness.models.conversion import to_provider_messages
from harness.models.protocol import (
    AssistantStream,
    Model,
    ModelContext,
    RequestOptions,
    ToolDefinition,
)
from harness.runtime.gate import AbortRequested
from harness.runtime.hooks import (
    AfterResponse,
    BeforePayload,
    BeforeRequest,
    StepKind,
    TransformContext,
)
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.provider_span import admit_stream
from harness.runtime.procedures.streaming import FrameWriter, ResponseObserver, report_synthetic
from harness.settings import LaneConfiguration, StreamOptions
from harness.telemetry import TelemetryContext
from harness.tools.protocol import AgentTool


@dataclass(frozen=True, slots=True)
class RequestPlan:
    """One approved request: what was captured and what the hooks made of it."""

    model: Model
    configuration: LaneConfiguration
    stream: StreamOptions
    step: StepKind
    response_entry_id: str
    # Starts the admitted stream: a generation, or the poll of a deferred response.
    start: Callable[[ModelContext, RequestOptions], AssistantStream]


def model_missing(configuration: LaneConfiguration) -> tuple[str, str, JsonValue]:
    """Code, message and details of a captured model that is not registered."""
    identity = configuration.model
    return (
        "model_unavailable",
        f"model {identity.provider}/{identity.model_id} is not registered here",
        {"provider": identity.provider, "modelId": identity.model_id},
    )


def output_limit(model: Model, stream: StreamOptions) -> int:
    """The output tokens that the request may produce: what was asked, within what the model can."""
    asked = stream.max_tokens or model.max_tokens
    return min(asked, model.max_tokens)


async def patched_options(
    p: DrivePass, model: Model, base: StreamOptions, step: StepKind, attempt: int
) -> StreamOptions:
    """The base options after `before_request`; background generation is for assistants only."""
    if step != "assistant":
        base = msgspec.structs.replace(base, deferred=None)
    if not p.core.hooks.has("before_request"):
        return base
    event = BeforeRequest(
        lane=p.lane.name,
        run_id=p.operation_id,
        model=model,
        step=step,
        attempt=attempt,
        stream_options=base,
    )
    patched = await p.hook(lambda context: p.core.hooks.before_request(event, context))
    return patched if step == "assistant" else msgspec.structs.replace(patched, deferred=None)


async def request_response(p: DrivePass, plan: RequestPlan) -> AssistantMessage | None:
    """Send the request and return its settled message; None when cancellation came before it."""
    frames = FrameWriter(p, plan.response_entry_id)
    capture = ResponseCapture()

    async def after_response(message: AssistantMessage) -> AssistantMessage:
        await frames.finish()
        if not p.core.hooks.has("after_response"):
            return message
        event = AfterResponse(
            lane=p.lane.name,
            run_id=p.operation_id,
            status=capture.metadata.status,
            headers=capture.metadata.headers,
            message=message,
        )
        try:
            return await p.hook(lambda context: p.core.hooks.after_response(event, context))
        except AbortRequested as abort:
            await abort.cancellation
            return message

    def request(model_context: ModelContext) -> AssistantStream:
        return admit_stream(
            p,
            plan.model,
            lambda telemetry: plan.start(
                model_context, request_options(p, plan, capture, telemetry)
            ),
            capture,
            poll=plan.step == "deferred",
            deferred=bool(plan.stream.deferred),
        )

    try:
        messages = await context_messages(p)
        system_prompt = await system_prompt_of(p)
        block = AssistantRequest(
            model=plan.model,
            system_prompt=system_prompt,
            tools=active_definitions(p, plan.configuration),
            clock=p.core.environment.clock,
            convert=lambda converted: convert_messages(p, converted),
            request=request,
            after_response=after_response,
            observer=ResponseObserver(p, plan.response_entry_id, frames),
            transform=context_transform(p),
        )
        if p.core.models.resolve(plan.configuration.model) is None:
            return await _vanished(p, plan)
        return await stream_assistant(messages, block)
    except AbortRequested as abort:
        # Cancellation won before the provider was asked: nothing was sent, nothing is known.
        await abort.cancellation
        return None
    finally:
        p.lane.live.partial = None


def unavailable(p: DrivePass, model: Model) -> AssistantMessage:
    """The in-band failure of a request whose model vanished after the intent."""
    failed = provider_failure(
        PartialMessage(),
        model,
        p.core.environment.clock,
        LookupError(f"model {model.provider}/{model.model_id} is not registered here any more"),
    )
    return msgspec.structs.replace(failed, error_kind="terminal")


async def _vanished(p: DrivePass, plan: RequestPlan) -> AssistantMessage:
    message = unavailable(p, plan.model)
    await report_synthetic(p, message, plan.response_entry_id, recovery=False)
    return message


def request_options(
    p: DrivePass, plan: RequestPlan, capture: ResponseCapture, telemetry: TelemetryContext
) -> RequestOptions:
    """What the provider adapter gets: the admitted signal and the harness-owned callbacks."""

    inside = p.below(telemetry)

    async def on_payload(payload: JsonValue) -> JsonValue:
        event = BeforePayload(
            lane=p.lane.name, run_id=p.operation_id, model=plan.model, payload=payload
        )
        return await inside.hook(lambda context: p.core.hooks.before_payload(event, context))

    return RequestOptions(
        stream=plan.stream,
        thinking_level=plan.configuration.thinking_level,
        signal=p.gate.signal,
        telemetry=telemetry,
        on_payload=on_payload if p.core.hooks.has("before_payload") else None,
        on_response=capture,
        session_id=p.core.session.id,
    )


async def context_messages(p: DrivePass) -> tuple[AgentMessage, ...]:
    """The lane's projected context; a failing projector faults the harness."""
    return await p.deterministic(
        lambda: p.lane.context.messages(
            p.core.session.storage, p.lane.projection.leaf_id, p.core.projectors, p.context
        )
    )


async def system_prompt_of(p: DrivePass) -> str:
    """The system prompt of this request."""
    source = p.core.system_prompt
    if isinstance(source, str):
        return source
    tool_context = await tool_context_of(p)
    return await p.deterministic(lambda: source(tool_context, p.context))


async def tool_context_of(p: DrivePass) -> object:
    """The application's tool context, resolved when it is a function."""
    source = p.core.tool_context
    return await p.deterministic(lambda: source(p.context)) if callable(source) else source


async def convert_messages(
    p: DrivePass, messages: tuple[AgentMessage, ...]
) -> tuple[ProviderMessage, ...]:
    """Messages as the provider takes them."""
    convert = p.core.convert
    if convert is None:
        return p.lane.context.converted(messages, to_provider_messages)
    converted: Sequence[ProviderMessage] = await p.deterministic(
        lambda: convert(messages, p.context)
    )
    return tuple(converted)


def context_transform(
    p: DrivePass,
) -> (
    Callable[[tuple[AgentMessage, ...], str], Awaitable[tuple[tuple[AgentMessage, ...], str]]]
    | None
):
    """The transform_context hook as a request-local change, or None without handlers."""
    if not p.core.hooks.has("transform_context"):
        return None

    async def transform(
        messages: tuple[AgentMessage, ...], system_prompt: str
    ) -> tuple[tuple[AgentMessage, ...], str]:
        event = TransformContext(
            lane=p.lane.name,
            run_id=p.operation_id,
            messages=messages,
            system_prompt=system_prompt,
        )
        changed = await p.hook(lambda context: p.core.hooks.transform_context(event, context))
        return changed.messages, changed.system_prompt

    return transform


def active_tools(p: DrivePass, configuration: LaneConfiguration) -> dict[str, AgentTool[Any]]:
    """The captured tools plus those that earlier results in the context made active."""
    names = (*configuration.active_tool_names, *p.lane.context.added_tools)
    return {name: p.core.tools[name] for name in names if name in p.core.tools}


def active_definitions(
    p: DrivePass, configuration: LaneConfiguration
) -> tuple[ToolDefinition, ...]:
    """The active tools as the model sees them."""
    return tuple(
        ToolDefinition(name=tool.name, description=tool.description, parameters=tool.parameters)
        for tool in active_tools(p, configuration).values()
    )
