"""Sets a harness up on recorded, gated memory and virtual time, and writes down all that happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from harness.context import BACKGROUND, AbortController, Context
from harness.environment import Environment
from harness.frames import AssistantMessageEvent
from harness.messages import AgentToolResult, DeferredHandle
from harness.models.protocol import AssistantStream, Model, ModelContext, RequestOptions
from harness.models.registry import ModelRegistry
from harness.models.script import Script
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.operation.results import OperationAdmission, OperationOutcome
from harness.operation.step import LaneProjection
from harness.result import Err, Ok, Result
from harness.runtime.attach import restore_lane
from harness.runtime.core import HarnessOptions
from harness.runtime.drive import DriveOptions
from harness.runtime.harness import AgentHarness
from harness.runtime.lane import Lane
from harness.runtime.requests import PromptRequest
from harness.session.session import MAIN_LANE, Session
from harness.settings import ReplayPolicy
from harness.storage.memory import MemoryStorage
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import CommitResult
from harness.storage.writes import Write, set_value
from harness.testing.audit import CommitAudit
from harness.testing.content import Content
from harness.testing.decorated import StorageDecorator
from harness.testing.gated import GatedStorage
from harness.testing.instrumented import InstrumentedStorage
from harness.testing.journal import Journal
from harness.testing.virtual_clock import VirtualClock, virtual_environment
from harness.tools.protocol import FunctionTool, ToolCallRequest

T = TypeVar("T")
Work = Callable[[ToolCallRequest[None]], Awaitable[AgentToolResult]]


class JournalProvider:
    """A scripted provider that writes down when it is asked, and when it is cancelled."""

    def __init__(self, script: Script, environment: Environment, journal: Journal) -> None:
        self.scripted = ScriptedProvider(script, environment.clock)
        self._journal = journal

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        return self._told("request", self.scripted.stream(model, context, options))

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        return self._told("poll", self.scripted.fetch_deferred(model, handle, options))

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        self._journal.append("cancel_deferred")
        await self.scripted.cancel_deferred(model, handle, options)

    async def _told(
        self, what: str, events: AssistantStream
    ) -> AsyncGenerator[AssistantMessageEvent, None]:
        self._journal.append(what)
        async for event in events:
            yield event


class ProjectionCheck(StorageDecorator):
    """Before every commit: what the lane believes is what a new process would read (§9.3 A)."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.storage)
        self._stage = stage

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        lane = self._stage.attached
        if lane is not None and not lane.core.closed:
            assert lane.projection == await self._stage.restored()
        result = await self.inner.commit(writes, context)
        self._stage.audit(writes, result)
        return result


class Stage:
    """One session in memory. `open` attaches a harness, `reopen` drops it and keeps what is durable."""

    def __init__(self, *, auto_advance: bool = True) -> None:
        self.environment = virtual_environment(auto_advance=auto_advance)
        self.journal = Journal()
        self.memory = MemoryStorage(self.clock)
        self.gated = GatedStorage(self.memory)
        self.storage = InstrumentedStorage(self.gated, self.journal)
        self.model = scripted_model()
        self.registry = ModelRegistry()
        self.tools: list[FunctionTool[None]] = []
        self.provider: JournalProvider | None = None
        self.audit = CommitAudit(Content(self.memory.state))
        self._harness: AgentHarness | None = None

    @property
    def clock(self) -> VirtualClock:
        clock = self.environment.clock
        assert isinstance(clock, VirtualClock)
        return clock

    @property
    def harness(self) -> AgentHarness:
        assert self._harness is not None
        return self._harness

    @property
    def lane(self) -> Lane:
        """The main lane's owner."""
        return lane_of(self.harness)

    @property
    def attached(self) -> Lane | None:
        """The main lane's owner, once there is one."""
        return None if self._harness is None else lane_of(self._harness)

    def script(self, script: Script) -> Stage:
        """What the model says."""
        self.provider = JournalProvider(script, self.environment, self.journal)
        self.registry.register(self.model, self.provider)
        return self

    def tool(self, name: str, work: Work, *, replay: ReplayPolicy = "never") -> Stage:
        """A tool; it writes down when it begins."""

        async def execute(request: ToolCallRequest[None]) -> AgentToolResult:
            self.journal.append(f"tool {name}")
            return await work(request)

        self.tools.append(FunctionTool(name, name, {"type": "object"}, execute, replay=replay))
        return self

    # Any: any field of the options.
    async def open(self, *, listen: bool = True, **changes: Any) -> AgentHarness:
        """Attach; the journal starts empty."""
        options = replace(
            HarnessOptions(models=self.registry, model=self.model, tools=tuple(self.tools)),
            **changes,
        )
        if await self.memory.get_value(values.lane_state(MAIN_LANE), BACKGROUND) is None:
            await self.memory.commit(
                (
                    set_value(values.lane_leaf(MAIN_LANE), None),
                    set_value(values.lane_state(MAIN_LANE), IDLE_LANE),
                ),
                BACKGROUND,
            )
        assert self.audit.problems == []
        self.audit = CommitAudit(Content(self.memory.state))
        self._harness, _ = await AgentHarness.create(self.session(), options, BACKGROUND)
        if listen:
            self.journal.listen(self._harness.events)
        self.storage.forget()
        self.journal.clear()
        return self._harness

    def session(self) -> Session:
        """Another session object over the same storage."""
        metadata = SessionMetadata(id="stage", created_at=0)
        return Session(ProjectionCheck(self), metadata, self.environment)

    async def reopen(self, **changes: Any) -> AgentHarness:
        """Close as a crash does, and attach again to what is durable."""
        await self.harness.close(BACKGROUND)
        self._harness = None
        self.memory = MemoryStorage(self.clock, self.memory.state)
        self.gated = GatedStorage(self.memory)
        self.storage = InstrumentedStorage(self.gated, self.journal)
        return await self.open(**changes)

    async def accept(self, text: str = "go") -> str:
        """Accept a prompt; returns the operation's id."""
        admission: OperationAdmission = ok(
            await self.harness.accept(PromptRequest(prompt=text), BACKGROUND)
        )
        return admission.operation_id

    def drive(
        self, operation_id: str, *, poll: bool = False, wait: bool = False
    ) -> asyncio.Task[Any]:
        """Drive in a task of its own."""
        options = DriveOptions(operation_id, wait_for_retry=wait, poll_deferred=poll)
        return asyncio.ensure_future(self.harness.drive(options, BACKGROUND))

    async def prompt(self, text: str = "go") -> OperationOutcome:
        """Accept and drive to the end."""
        return ok(await self.harness.prompt(text, BACKGROUND))

    async def restored(self) -> LaneProjection:
        """The main lane's projection as a new process would read it."""
        metadata = SessionMetadata(id="stage", created_at=0)
        session = Session(MemoryStorage(self.clock, self.memory.state), metadata, self.environment)
        return await restore_lane(session, MAIN_LANE, BACKGROUND)

    async def close(self) -> None:
        """Close whatever is open, also where a failed test left commits parked."""
        self.gated.release_all()
        if self._harness is not None and self._harness.faulted is None:
            await self._harness.close(BACKGROUND)
        assert self.audit.problems == []


def lane_of(harness: AgentHarness) -> Lane:
    """The owner behind a facade."""
    return harness._lane  # tests look behind the facade


def ok(result: Result[T, Any]) -> T:
    """The value of a call that must succeed."""
    assert isinstance(result, Ok), result
    return result.value


def err(result: Result[Any, T]) -> T:
    """The error of a call that must be rejected."""
    assert isinstance(result, Err), result
    return result.error


def caller() -> tuple[AbortController, Context]:
    """A caller that can go away."""
    controller = AbortController()
    return controller, BACKGROUND.with_abort_signal(controller.signal)


async def settle() -> None:
    """Let everything run that can run without anybody's help."""
    for _ in range(50):
        await asyncio.sleep(0)
