"""The public lane: primitives, and the conveniences that compose them (§5.1)."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from harness.codec import JsonValue, foreign_json
from harness.context import Context
from harness.errors import (
    Closed,
    HarnessClosed,
    InvalidArgument,
    InvariantDefect,
    NoActiveOperation,
    NothingToResume,
    OutcomeReplaced,
)
from harness.messages import AgentMessage, ImageContent, ThinkingLevel
from harness.models.protocol import Model
from harness.operation import values
from harness.operation.events import ConfigUpdate, RunResume
from harness.operation.lane_state import LaneLastResult
from harness.operation.results import (
    AbortRequest,
    DriveOutcome,
    DriveSettled,
    DriveWaitingDeferred,
    LaneExecution,
    OperationOutcome,
    RunOutcome,
)
from harness.operation.step import LaneProjection, Step, UsageWritten
from harness.result import Err, Ok, Result
from harness.runtime import accept as acceptance
from harness.runtime import control, inbox
from harness.runtime.accept import CLOSED, Admission, AdmissionError
from harness.runtime.drive import DriveOptions
from harness.runtime.lane import Commit, Decision, Decline, Lane, until_cancelled
from harness.runtime.lane_tree import LaneTree
from harness.runtime.requests import (
    CompactionRequest,
    NavigateOptions,
    NavigationRequest,
    OperationRequest,
    PromptRequest,
    SkillRequest,
    TemplateRequest,
)
from harness.runtime.snapshots import LaneWatch, watch_lane
from harness.session.once import Once, made_before, noting
from harness.session.session import SessionMutator
from harness.settings import LaneConfiguration, ModelIdentity
from harness.storage.writes import insert_usage, set_value
from harness.usage import NewUsageRow, Usage

OperationResult: TypeAlias = Result[OperationOutcome, AdmissionError]
ResumeResult: TypeAlias = Result[OperationOutcome, NothingToResume | Closed]
StopResult: TypeAlias = Result[AbortRequest, NoActiveOperation | Closed]


class AgentLane:
    """One lane of a session. Expected rejections are `Err`; faults and close raise."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self.tree = LaneTree(lane)

    @property
    def name(self) -> str:
        """The lane's permanent name."""
        return self._lane.name

    async def get_leaf_id(self, context: Context) -> str | None:
        """Where the lane appends next; None at the root."""
        return (await self.inspect_execution(context)).leaf_id

    async def get_last_result(self, context: Context) -> LaneLastResult | None:
        """The lane's most recent terminal outcome (§3.13)."""
        return (await self.inspect_execution(context)).last_result

    # Primitives

    async def accept(self, request: OperationRequest, context: Context) -> Admission:
        """Accept an operation durably; nothing is started (§3.6)."""
        return await acceptance.accept(self._lane, request, context)

    async def drive(self, options: DriveOptions, context: Context) -> control.DriveResult:
        """Own, or join, one pass over the expected operation (§4.1)."""
        return await control.drive(self._lane, options, context)

    async def request_abort(self, operation_id: str, context: Context) -> control.AbortResult:
        """Make cancellation of the expected operation durable (§4.6)."""
        return await control.request_abort(self._lane, operation_id, context)

    async def inspect_execution(self, context: Context) -> LaneExecution:
        """A coherent observation of the lane."""
        return await control.inspect_execution(self._lane, context)

    async def watch(self, context: Context) -> LaneWatch:
        """A snapshot of the lane and the events after it, without gap or duplicate (§5.4)."""
        return await watch_lane(self._lane, context)

    # Conveniences

    async def prompt(
        self,
        message: str | AgentMessage | tuple[AgentMessage, ...],
        context: Context,
        *,
        images: tuple[ImageContent, ...] = (),
        operation_id: str | None = None,
    ) -> OperationResult:
        """Accept a prompt and drive it to its outcome or deferral.

        Raises `OutcomeReplaced` when somebody else drove it to its end and then ended another
        operation of this lane before this call could look.
        """
        return await self._accept_and_drive(
            PromptRequest(prompt=message, images=images, operation_id=operation_id), context
        )

    async def skill(
        self, name: str, context: Context, *, additional_instructions: str | None = None
    ) -> OperationResult:
        """Run a skill."""
        return await self._accept_and_drive(
            SkillRequest(name=name, additional_instructions=additional_instructions), context
        )

    async def prompt_from_template(
        self, name: str, args: tuple[str, ...], context: Context
    ) -> OperationResult:
        """Run a prompt template."""
        return await self._accept_and_drive(TemplateRequest(name=name, args=args), context)

    async def compact(
        self, context: Context, *, custom_instructions: str | None = None
    ) -> OperationResult:
        """Compact the lane's context now."""
        return await self._accept_and_drive(
            CompactionRequest(custom_instructions=custom_instructions), context
        )

    async def navigate(
        self,
        target_id: str | None,
        context: Context,
        *,
        summarize: bool = False,
        label: str | None = None,
        custom_instructions: str | None = None,
    ) -> OperationResult:
        """Move the lane to another entry."""
        return await self._accept_and_drive(
            NavigationRequest(
                target_id=target_id,
                options=NavigateOptions(
                    summarize=summarize, label=label, custom_instructions=custom_instructions
                ),
            ),
            context,
        )

    async def resume(self, context: Context) -> ResumeResult:
        """Drive the open operation, with one poll of a deferred response (§4.5)."""
        if self._lane.core.closed:
            return Err(CLOSED)
        current = (await self.inspect_execution(context)).current
        if current is None:
            return Err(NothingToResume(message=f"lane {self.name} is idle", lane=self.name))
        await self._lane.emit((RunResume(lane=self.name, run_id=current.id),), context)
        options = DriveOptions(current.id, wait_for_retry=True, poll_deferred=True)
        driven = await self.drive(options, context)
        if isinstance(driven, Ok):
            return Ok(_outcome(driven.value))
        if isinstance(driven.error, Closed):
            return Err(driven.error)
        return Err(NothingToResume(message=f"lane {self.name} is idle", lane=self.name))

    async def abort(self, context: Context) -> StopResult:
        """Cancel the open operation; returns when that is durable and being reconciled (§4.6)."""
        if self._lane.core.closed:
            return Err(CLOSED)
        idle = NoActiveOperation(message=f"lane {self.name} is idle", lane=self.name)
        current = (await self.inspect_execution(context)).current
        if current is None:
            return Err(idle)
        requested = await self.request_abort(current.id, context)
        if isinstance(requested, Err):
            return Err(requested.error if isinstance(requested.error, Closed) else idle)
        # Reconciliation needs a pass; whoever owns one already does it.
        background = context.with_abort_signal(None)
        driving = asyncio.ensure_future(self.drive(DriveOptions(current.id), background))
        self._lane.core.detach(driving)
        return Ok(requested.value)

    async def _accept_and_drive(
        self, request: OperationRequest, context: Context
    ) -> OperationResult:
        admitted = await self.accept(request, context)
        if isinstance(admitted, Err):
            return admitted
        options = DriveOptions(admitted.value.operation_id, wait_for_retry=True)
        while True:
            driven = await self.drive(options, context)
            if isinstance(driven, Err):
                if isinstance(driven.error, Closed):
                    raise HarnessClosed
                raise OutcomeReplaced(admitted.value.operation_id)
            # A joined pass may have stopped at a retry wait that this caller sits out.
            if isinstance(driven.value, DriveSettled | DriveWaitingDeferred):
                return Ok(_outcome(driven.value))

    # Queues

    async def steer(
        self,
        message: str | AgentMessage,
        context: Context,
        *,
        images: Sequence[ImageContent] = (),
        once: Once | None = None,
    ) -> inbox.QueueResult:
        """Queue input for the open run's next turn."""
        return await inbox.enqueue(self._lane, "steer", message, images, once, context)

    async def follow_up(
        self,
        message: str | AgentMessage,
        context: Context,
        *,
        images: Sequence[ImageContent] = (),
        once: Once | None = None,
    ) -> inbox.QueueResult:
        """Queue input for when the open run would otherwise end."""
        return await inbox.enqueue(self._lane, "follow_up", message, images, once, context)

    async def next_run(
        self,
        message: str | AgentMessage,
        context: Context,
        *,
        images: Sequence[ImageContent] = (),
        once: Once | None = None,
    ) -> inbox.NextRunResult:
        """Queue input that the next run starts with."""
        return await inbox.enqueue_next_run(self._lane, message, images, once, context)

    async def cancel_queued(self, entry_id: str, context: Context) -> inbox.CancelQueuedResult:
        """Remove a queued item (§3.11)."""
        return await inbox.cancel_queued(self._lane, entry_id, context)

    # Ledger and idleness

    async def record_usage(
        self,
        usage: Usage,
        context: Context,
        *,
        entry_id: str | None = None,
        details: JsonValue = None,
        once: Once | None = None,
    ) -> Result[str, Closed]:
        """Append a reconciliation row to the ledger; returns its id (§1.6)."""
        row = NewUsageRow(
            id=self._lane.core.environment.ids.next(),
            usage=usage,
            entry_id=entry_id,
            adjustment=True,
            details=foreign_json(details),
        )

        async def plan(
            projection: LaneProjection, mutator: SessionMutator, inner: Context
        ) -> Decision[str]:
            known = await made_before(once, inner)
            if known is not None:
                return Decline(known)
            step = Step((insert_usage(row),), projection, (UsageWritten(0),))
            return Commit(noting(step, once, row.id), row.id)

        try:
            return Ok(await self._lane.command(plan, context))
        except HarnessClosed:
            return Err(CLOSED)

    async def wait_for_idle(self, context: Context) -> None:
        """Return when the lane has no open operation and no idle callback (§5.1)."""
        waiter = await self._lane.command(self._idle_plan, context)
        if waiter is not None:
            await until_cancelled(waiter, context)

    def _idle_plan(
        self, projection: LaneProjection, mutator: SessionMutator, context: Context
    ) -> Decision[asyncio.Future[None] | None]:
        return Decline(None if self._lane.is_idle else self._lane.idle_waiter())

    async def run_when_idle(
        self, callback: Callable[[Context], Awaitable[None] | None], context: Context
    ) -> None:
        """Own the idle lane for the length of a callback; whatever would write to it waits.

        The callback itself must not write to the same lane: it would wait for its own end.
        """

        def plan(
            projection: LaneProjection, mutator: SessionMutator, inner: Context
        ) -> Decision[asyncio.Future[None] | None]:
            if not self._lane.is_idle:
                return Decline(self._lane.idle_waiter())
            self._lane.own_idleness()
            return Decline(None)

        while (waiter := await self._lane.command(plan, context)) is not None:
            await until_cancelled(waiter, context)
        try:
            outcome = callback(context)
            if inspect.isawaitable(outcome):
                await outcome
        finally:
            self._lane.release_idleness()

    # Configuration

    async def get_model(self, context: Context) -> Model | None:
        """The configured model, or None when it is not registered in this process."""
        return self._lane.core.models.resolve(self._lane.projection.config.model)

    async def set_model(self, model: Model | ModelIdentity, context: Context) -> None:
        """Use another model from the next step on."""
        identity = model.identity if isinstance(model, Model) else model

        def change(config: LaneConfiguration) -> tuple[LaneConfiguration, ConfigUpdate]:
            return msgspec.structs.replace(config, model=identity), ConfigUpdate(
                lane=self.name,
                property="model",
                value=msgspec.to_builtins(identity),
                previous=msgspec.to_builtins(config.model),
            )

        await self._configure(change, context)

    async def get_thinking_level(self, context: Context) -> ThinkingLevel:
        """The configured thinking level."""
        return self._lane.projection.config.thinking_level

    async def set_thinking_level(self, level: ThinkingLevel, context: Context) -> None:
        """Use another thinking level from the next step on."""

        def change(config: LaneConfiguration) -> tuple[LaneConfiguration, ConfigUpdate]:
            return msgspec.structs.replace(config, thinking_level=level), ConfigUpdate(
                lane=self.name,
                property="thinkingLevel",
                value=level,
                previous=config.thinking_level,
            )

        await self._configure(change, context)

    async def get_active_tools(self, context: Context) -> tuple[str, ...]:
        """The names of the active tools."""
        return self._lane.projection.config.active_tool_names

    async def set_active_tools(self, names: Sequence[str], context: Context) -> None:
        """Use other tools from the next step on; raises `InvalidArgument` for a repeated name."""
        chosen = tuple(names)
        if len(set(chosen)) != len(chosen):
            raise InvalidArgument("a tool name appears twice")

        def change(config: LaneConfiguration) -> tuple[LaneConfiguration, ConfigUpdate]:
            return msgspec.structs.replace(config, active_tool_names=chosen), ConfigUpdate(
                lane=self.name,
                property="activeTools",
                value=list(chosen),
                previous=list(config.active_tool_names),
            )

        await self._configure(change, context)

    async def _configure(
        self,
        change: Callable[[LaneConfiguration], tuple[LaneConfiguration, ConfigUpdate]],
        context: Context,
    ) -> None:
        def plan(
            projection: LaneProjection, mutator: SessionMutator, inner: Context
        ) -> Decision[None]:
            config, event = change(projection.config)
            write = set_value(values.lane_config(self.name), config)
            following = LaneProjection(
                lane=projection.lane,
                leaf_id=projection.leaf_id,
                config=config,
                state=projection.state,
                last_result=projection.last_result,
                operation=projection.operation,
            )
            return Commit(Step((write,), following, (event,)), None)

        await self._lane.command(plan, context)


def _outcome(driven: DriveOutcome) -> OperationOutcome:
    if isinstance(driven, DriveSettled):
        return driven.outcome
    if isinstance(driven, DriveWaitingDeferred):
        return RunOutcome(
            run_id=driven.operation_id,
            kind="suspended",
            leaf_id=driven.leaf_id,
            final_entry_id=driven.source_entry_id,
            deferred=driven.deferred,
        )
    raise InvariantDefect("a pass that waits for retries does not return from one")
