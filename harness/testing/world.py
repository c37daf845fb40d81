"""What outlives a process that is played to death: time, the provider, what tools did, the user (§9.3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from harness.clock import Clock
from harness.codec import JsonValue
from harness.context import BACKGROUND
from harness.entries import CompactionPayload, CustomPayload, MessagePayload
from harness.environment import Environment
from harness.frames import AssistantMessageEvent, DoneEvent, ErrorEvent
from harness.ids import IdGenerator
from harness.messages import (
    AgentMessage,
    AgentToolResult,
    AssistantMessage,
    DeferredHandle,
    ToolResultMessage,
    UserMessage,
    plain_text,
)
from harness.models.protocol import AssistantStream, Model, ModelContext, RequestOptions
from harness.models.registry import ModelRegistry
from harness.models.script import Gate, Script
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.operation.payloads import PendingCustom, PendingMessage
from harness.runtime.agent_lane import AgentLane
from harness.session.session import MAIN_LANE
from harness.settings import ReplayPolicy
from harness.storage.memory import MemoryState
from harness.storage.protocol import CommitResult
from harness.storage.writes import (
    FRAME_NAMESPACE,
    AppendList,
    InsertEntry,
    SetValue,
    Write,
    set_value,
)
from harness.testing.audit import CommitAudit
from harness.testing.content import Content
from harness.testing.crash import Process, ProcessClock, current_process
from harness.testing.virtual_clock import VirtualClock, virtual_environment
from harness.tools.protocol import FunctionTool, ToolCallRequest

OBJECT: dict[str, JsonValue] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class UserStep:
    """Something the user does once the world has come by `after`; repeated until it is answered.

    `after_lost_tool`: also when a process died while a tool's outcome was uncertain, because the
    tool may never come by again.
    """

    after: str
    act: Callable[[World, AgentLane], Awaitable[None]]
    after_lost_tool: bool = False


def _fresh_session() -> Content:
    state = MemoryState()
    state.apply(
        (
            set_value(values.lane_leaf(MAIN_LANE), None),
            set_value(values.lane_state(MAIN_LANE), IDLE_LANE),
        ),
        0,
    )
    state.next_seq = 1  # a backend may make a session without using numbers up
    return Content(state)


@dataclass(slots=True)
class World:
    """One run of a scenario, across all its processes."""

    environment: Environment = field(default_factory=virtual_environment)
    reached: set[str] = field(default_factory=set[str])
    answered: set[str] = field(default_factory=set[str])
    # How often each tool call began, by invocation id, and how often each named effect happened.
    runs: Counter[str] = field(default_factory=Counter[str])
    effects: Counter[str] = field(default_factory=Counter[str])
    replay_of: dict[str, ReplayPolicy] = field(default_factory=dict[str, ReplayPolicy])
    writes: list[Write] = field(default_factory=list[Write])
    audit: CommitAudit = field(default_factory=lambda: CommitAudit(_fresh_session()))
    lost_tool: bool = False
    operation_id: str = ""
    # Where tools and hooks that count across processes keep their numbers.
    memory: dict[str, int] = field(default_factory=dict[str, int])
    _waiting: list[asyncio.Future[None]] = field(default_factory=list[asyncio.Future[None]])

    @property
    def clock(self) -> VirtualClock:
        """The virtual clock under everything."""
        clock = self.environment.clock
        assert isinstance(clock, VirtualClock)
        return clock

    def environment_of(self, process: Process) -> Environment:
        """The environment as this process sees it: its timers are points of death."""
        clock: Clock = ProcessClock(self.clock, process)
        ids: IdGenerator = self.environment.ids
        return Environment(clock=clock, ids=ids, rng=self.environment.rng)

    # What happens, seen from outside

    def observe(self, writes: Sequence[Write], result: CommitResult) -> None:
        """Hear of a durable commit: what it wrote, and whether it may have."""
        self.writes.extend(writes)
        self.audit(writes, result)
        self._tell()

    async def boundary(self, label: str) -> None:
        """Come by an effect's boundary: a place where a process may die."""
        self.reached.add(label)
        self._tell()
        await current_process().point("effect", label)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the world is so."""
        while not condition():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(waiter)
            await waiter

    def _tell(self) -> None:
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def answer(self, step: UserStep) -> None:
        """The user has the answer to a step."""
        self.answered.add(step.after)
        self._tell()

    async def user_is_done(self, after: str) -> None:
        """Return when the user's step after that label is answered."""
        await self.until(lambda: after in self.answered)

    # What is durable, as far as scripts want to know

    def messages(self) -> list[AgentMessage]:
        """The messages of all committed entries, in order."""
        return [
            write.entry.payload.message
            for write in self.writes
            if isinstance(write, InsertEntry) and isinstance(write.entry.payload, MessagePayload)
        ]

    def staged(self) -> int:
        """How many tool outcomes were made durable so far."""
        return sum(
            isinstance(write, SetValue)
            and isinstance(write.value, PendingMessage)
            and isinstance(write.value.payload, ToolResultMessage)
            for write in self.writes
        )

    def was_said(self, text: str) -> bool:
        """Whether a user message with this text was ever queued or placed."""
        queued = [
            write.value.payload
            for write in self.writes
            if isinstance(write, SetValue) and isinstance(write.value, PendingMessage)
        ]
        return any(
            isinstance(message, UserMessage) and plain_text(message.content) == text
            for message in (*queued, *self.messages())
        )

    def was_noted(self, custom_type: str) -> bool:
        """Whether a custom entry of this type was ever queued or placed."""
        return any(
            (isinstance(write, SetValue) and _custom_type(write.value) == custom_type)
            or (isinstance(write, InsertEntry) and _custom_type(write.entry.payload) == custom_type)
            for write in self.writes
        )

    def entry_ids(self) -> list[str]:
        """The ids of all committed entries, in order."""
        return [write.entry.id for write in self.writes if isinstance(write, InsertEntry)]

    def compactions(self) -> int:
        """How many compactions are in the tree."""
        return sum(
            isinstance(write, InsertEntry) and isinstance(write.entry.payload, CompactionPayload)
            for write in self.writes
        )

    def frame_keys(self) -> set[str]:
        """The keys of every frame list that ever existed."""
        return {
            write.key
            for write in self.writes
            if isinstance(write, AppendList) and write.namespace == FRAME_NAMESPACE
        }


def responses(world: World) -> list[AssistantMessage]:
    """The committed assistant messages."""
    return [message for message in world.messages() if isinstance(message, AssistantMessage)]


def _custom_type(stored: object) -> str | None:
    return stored.custom_type if isinstance(stored, PendingCustom | CustomPayload) else None


class WorldProvider:
    """A scripted provider whose requests, pieces and answers are boundaries."""

    def __init__(self, world: World, script: Script) -> None:
        self._world = world
        self._scripted = ScriptedProvider(script, world.clock)

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        """See `Models.stream`."""
        return self._told("request", self._scripted.stream(model, context, options))

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        """See `Models.fetch_deferred`."""
        return self._told("poll", self._scripted.fetch_deferred(model, handle, options))

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        """See `Models.cancel_deferred`."""
        self._world.effects["cancel_deferred"] += 1
        await self._world.boundary("cancel at the provider")

    async def _told(
        self, what: str, events: AssistantStream
    ) -> AsyncGenerator[AssistantMessageEvent, None]:
        await self._world.boundary(f"{what} sent")
        self._world.effects[what] += 1
        async for event in events:
            if isinstance(event, DoneEvent | ErrorEvent):
                await self._world.boundary(f"{what} answered")
            yield event


class WorldGate(Gate):
    """A place in a stream where the provider waits for the user."""

    __slots__ = ("_label", "_world")

    def __init__(self, world: World, label: str) -> None:
        super().__init__()
        self._world = world
        self._label = label

    async def pass_through(self) -> None:
        """See `Gate.pass_through`."""
        await self._world.boundary(self._label)
        await self._world.user_is_done(self._label)


def registry(world: World, script: Script, model: Model | None = None) -> ModelRegistry:
    """A registry with one model that plays a script in this world."""
    chosen = scripted_model() if model is None else model
    return ModelRegistry([(chosen, WorldProvider(world, script))])


def world_tool(
    world: World,
    name: str,
    work: Callable[[ToolCallRequest[None]], Awaitable[AgentToolResult]],
    *,
    replay: ReplayPolicy = "never",
) -> FunctionTool[None]:
    """A tool whose begin and end are boundaries and whose runs are counted."""

    async def execute(request: ToolCallRequest[None]) -> AgentToolResult:
        invocation = request.invocation.invocation_id
        world.replay_of[invocation] = replay
        world.runs[invocation] += 1
        await world.boundary(f"{name} began")
        result = await work(request)
        await world.boundary(f"{name} ended")
        return result

    return FunctionTool(name, f"the {name} tool", OBJECT, execute, replay=replay)


async def steer_once(world: World, lane: AgentLane, text: str) -> None:
    """Steer unless an earlier attempt whose answer was lost has arrived."""
    if not world.was_said(text):
        await lane.steer(text, BACKGROUND)


async def abort_once(world: World, lane: AgentLane) -> None:
    """Ask to cancel; asking again is harmless."""
    await lane.request_abort(world.operation_id, BACKGROUND)
