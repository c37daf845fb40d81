"""One nested request of a summary attempt: intent, gated stream, cost; nothing of it is shown (§3.2, §3.9)."""

from __future__ import annotations

import msgspec

from harness.compaction.summarize import SummaryFailed, SummaryReply, read_summary
from harness.errors import InvariantDefect
from harness.execution.assistant import ResponseCapture, consume_stream
from harness.frames import AssistantMessageFrame, StartFrame
from harness.messages import AssistantMessage
from harness.models.protocol import AssistantStream, Model, ModelContext, RequestOptions
from harness.operation.state import Generating, SummaryPending, SummaryRequest
from harness.operation.step import LaneProjection, Step
from harness.operation.transitions import structural as transitions
from harness.runtime.procedures.base import DrivePass
from harness.runtime.procedures.provider_span import admit_stream
from harness.runtime.procedures.requests import patched_options, unavailable
from harness.telemetry import TelemetryContext
from harness.usage import NewUsageRow


async def nested_request(
    p: DrivePass, model: Model, model_context: ModelContext, limit: int, index: int
) -> SummaryReply:
    """Ask for a summary of at most `limit` tokens; raises `SummaryFailed` without a usable one."""
    pending = pending_summary(p)
    stream = await patched_options(
        p, model, pending.context.stream_options, pending.context.kind, pending.attempt
    )
    stream = msgspec.structs.replace(stream, max_tokens=limit)
    usage_id = p.new_id()

    def intend(projection: LaneProjection) -> Step:
        return transitions.intend_summary_request(
            projection, pending_summary(p), SummaryRequest(index=index, usage_id=usage_id)
        )

    await p.step(intend)
    if p.core.models.resolve(pending.context.configuration.model) is None:
        raise SummaryFailed(unavailable(p, model))

    capture = ResponseCapture()

    def start(telemetry: TelemetryContext) -> AssistantStream:
        options = RequestOptions(
            stream=stream,
            thinking_level="off",
            signal=p.gate.signal,
            telemetry=telemetry,
            on_response=capture,
            session_id=p.core.session.id,
        )
        return p.core.models.stream(model, model_context, options)

    started = admit_stream(p, model, start, capture)
    message, _ = await consume_stream(started, model, p.core.environment.clock, _Silent())

    def settle(projection: LaneProjection) -> Step:
        return transitions.settle_summary_request(
            projection, pending_summary(p), NewUsageRow(id=usage_id, usage=message.usage)
        )

    await p.step(settle, cancelled_ok=True)
    return read_summary(message, limit)


class _Silent:
    """Summaries are internal: their streams are neither reported nor stored."""

    async def start(self, message: AssistantMessage, frame: StartFrame | None) -> None:
        return None

    async def update(self, message: AssistantMessage, frame: AssistantMessageFrame) -> None:
        return None

    async def end(self, message: AssistantMessage) -> None:
        return None


def pending_summary(p: DrivePass) -> SummaryPending:
    structural = transitions.structural_of(p.current().state)
    if not isinstance(structural, Generating) or not isinstance(
        structural.generation, SummaryPending
    ):
        raise InvariantDefect("no summary attempt is under way")
    return structural.generation
