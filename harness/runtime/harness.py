"""The harness: one owner of an open session, its lanes, its registries and its settings (§5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from harness.context import Context
from harness.errors import (
    Closed,
    HarnessClosed,
    HarnessError,
    HarnessFault,
    InvalidArgument,
    InvalidLane,
    LaneExists,
    UnknownTarget,
)
from harness.operation.events import ConfigUpdate, HarnessEvent, LaneCreated
from harness.operation.lane_state import IDLE_LANE
from harness.operation.results import LaneInfo, OpenOperation, SessionSnapshot
from harness.operation.step import LaneProjection
from harness.result import Err, Ok, Result
from harness.runtime.accept import CLOSED
from harness.runtime.agent_lane import AgentLane
from harness.runtime.attach import open_operation, restore_lanes
from harness.runtime.core import Core, HarnessOptions
from harness.runtime.events import EventBus
from harness.runtime.hooks import Hooks
from harness.runtime.lane import Lane
from harness.runtime.resources import Resources
from harness.runtime.snapshots import Watch, current_operation
from harness.session.once import Once, OnceUnknown, Superseded
from harness.session.session import MAIN_LANE, Session
from harness.settings import (
    CompactionSettings,
    QueueMode,
    RetryPolicy,
    StreamOptions,
    check_compaction,
    normalize_retry,
)
from harness.tools.protocol import AgentTool

CreateLaneResult: TypeAlias = Result[AgentLane, LaneExists | InvalidLane | UnknownTarget | Closed]


class SessionWatch(Watch):
    """A watch of all lanes."""

    snapshot: SessionSnapshot


class AgentHarness(AgentLane):
    """Owns a session until `close`. Is itself the main lane."""

    def __init__(self, core: Core) -> None:
        super().__init__(core.lanes[MAIN_LANE])
        self._core = core
        self._facades: dict[str, AgentLane] = {MAIN_LANE: self}
        self._closing: asyncio.Task[None] | None = None

    @staticmethod
    async def create(
        session: Session, options: HarnessOptions, context: Context
    ) -> tuple[AgentHarness, list[OpenOperation]]:
        """Attach to an open session: restore projections, report open operations, start nothing.

        Raises `HarnessFault` when a projection is missing or contradictory; ownership of the
        session returns to the caller then.
        """
        try:
            core = Core(session, options)
            session.totals = (await session.get_stats(context)).usage
            projections = await restore_lanes(session, core.seed, context)
        except InvalidArgument:
            raise
        except HarnessError as error:
            raise HarnessFault(f"cannot attach to session {session.id}: {error}", error) from error
        for projection in projections:
            core.lanes[projection.lane] = Lane(core, projection)
        found = [open_operation(projection) for projection in projections]
        return AgentHarness(core), [item for item in found if item is not None]

    @property
    def events(self) -> EventBus:
        """Passive reports of what happens (§5.5)."""
        return self._core.events

    @property
    def hooks(self) -> Hooks:
        """Awaited interception points (§5.6)."""
        return self._core.hooks

    @property
    def session(self) -> Session:
        """The session this harness owns."""
        return self._core.session

    @property
    def faulted(self) -> HarnessFault | None:
        """The fault that stopped this harness, if any."""
        return self._core.faulted

    def on_fault(self, listener: Callable[[HarnessFault], None]) -> None:
        """Hear synchronously when the harness faults."""
        self._core.on_fault.append(listener)

    def fault(self, cause: BaseException, context: Context) -> HarnessFault:
        """Stop everything because the host lost the session (§4.8, §6 of the hosting contract)."""
        return self._core.fault(cause, context)

    # Lanes

    async def lane(self, name: str, context: Context) -> AgentLane | None:
        """The lane of that name."""
        self._core.check()
        if name not in self._core.lanes:
            return None
        facade = self._facades.get(name)
        if facade is None:
            facade = self._facades[name] = AgentLane(self._core.lanes[name])
        return facade

    async def lanes(self, context: Context) -> list[LaneInfo]:
        """Every lane; always includes main."""
        self._core.check()
        return [self._info(lane) for lane in self._core.lanes.values()]

    def _info(self, lane: Lane) -> LaneInfo:
        return LaneInfo(
            name=lane.name,
            leaf_id=lane.projection.leaf_id,
            operation=current_operation(lane.projection.operation, owned=lane.drive is not None),
        )

    async def create_lane(
        self, name: str, at: str | None, context: Context, *, once: Once | None = None
    ) -> CreateLaneResult:
        """Create a lane at an entry, configured by the seed captured at `create` (§5.2)."""
        if self._core.closed:
            return Err(CLOSED)
        self._core.check()
        core = self._core

        def committed(inner: Context) -> asyncio.Future[None] | None:
            lane = Lane(
                core,
                LaneProjection(
                    lane=name,
                    leaf_id=at,
                    config=core.seed,
                    state=IDLE_LANE,
                    last_result=None,
                    operation=None,
                ),
            )
            if core.faulted is not None:
                lane.stop(core.faulted)
            core.lanes[name] = lane
            return core.events.emit_batch((LaneCreated(lane=name, at=at),), inner)

        try:
            created = await core.session.create_lane(
                name, at, core.seed, committed, context, once=once
            )
        except HarnessClosed:
            return Err(CLOSED)
        except (HarnessFault, Superseded, OnceUnknown):
            raise
        except Exception as error:
            raise core.fault(error, context) from error
        if isinstance(created, Err):
            return created
        lane = await self.lane(name, context)
        assert lane is not None
        return Ok(lane)

    async def watch_session(self, context: Context) -> SessionWatch:
        """The lanes of the session, then the events of all of them."""
        self._core.check()
        watch = SessionWatch(self._core.events, _everything)
        watch.snapshot = SessionSnapshot(
            lanes=tuple(self._info(lane) for lane in self._core.lanes.values()),
            faulted=self._core.faulted is not None,
        )
        return watch

    # Harness-wide settings

    async def get_tools(self, context: Context) -> tuple[AgentTool[Any], ...]:
        """The registered tools."""
        return tuple(self._core.tools.values())

    async def set_tools(self, tools: Sequence[AgentTool[Any]], context: Context) -> None:
        """Replace the registry; active names stay as lanes configured them."""
        self._core.tools = {tool.name: tool for tool in tools}
        await self._changed(ConfigUpdate(property="tools"), context)

    async def get_resources(self, context: Context) -> Resources:
        """Skills and prompt templates."""
        return self._core.resources

    async def set_resources(self, resources: Resources, context: Context) -> None:
        """Replace skills and prompt templates."""
        self._core.resources = resources
        await self._changed(ConfigUpdate(property="resources"), context)

    async def get_stream_options(self, context: Context) -> StreamOptions:
        """The base options of requests."""
        return self._core.stream_options

    async def set_stream_options(self, options: StreamOptions, context: Context) -> None:
        """Replace the base options from the next step on."""
        async with self._core.settings_line:
            self._core.stream_options = options
        await self._changed(ConfigUpdate(property="streamOptions"), context)

    async def get_retry_policy(self, context: Context) -> RetryPolicy:
        """The retry policy."""
        return self._core.retry

    async def set_retry_policy(self, policy: RetryPolicy, context: Context) -> None:
        """Replace the retry policy from the next step on; raises `InvalidArgument` if invalid."""
        normalize_retry(policy)
        async with self._core.settings_line:
            self._core.retry = policy
        await self._changed(ConfigUpdate(property="retryPolicy"), context)

    async def get_compaction_settings(self, context: Context) -> CompactionSettings:
        """The compaction settings."""
        return self._core.compaction

    async def set_compaction_settings(self, settings: CompactionSettings, context: Context) -> None:
        """Replace the compaction settings for later operations; raises `InvalidArgument`."""
        check_compaction(settings)
        async with self._core.settings_line:
            self._core.compaction = settings
        await self._changed(ConfigUpdate(property="compactionSettings"), context)

    async def get_steering_mode(self, context: Context) -> QueueMode:
        """How many steering messages one checkpoint takes."""
        return self._core.steering_mode

    async def set_steering_mode(self, mode: QueueMode, context: Context) -> None:
        """Change the steering mode for later runs."""
        async with self._core.settings_line:
            self._core.steering_mode = mode
        await self._changed(ConfigUpdate(property="steeringMode"), context)

    async def get_follow_up_mode(self, context: Context) -> QueueMode:
        """How many follow-ups one checkpoint takes."""
        return self._core.follow_up_mode

    async def set_follow_up_mode(self, mode: QueueMode, context: Context) -> None:
        """Change the follow-up mode for later runs."""
        async with self._core.settings_line:
            self._core.follow_up_mode = mode
        await self._changed(ConfigUpdate(property="followUpMode"), context)

    async def _changed(self, event: HarnessEvent, context: Context) -> None:
        self._core.check()
        await self._core.events.emit((event,), context)

    # Close

    async def close(self, context: Context) -> None:
        """Stop as a crash would, without losing what was committed (§4.7). Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(context))
        await asyncio.shield(self._closing)

    async def _close(self, context: Context) -> None:
        core = self._core
        core.closed = True
        core.session.seal()
        closed = HarnessClosed()
        for lane in core.lanes.values():
            lane.stop(closed)
        for lane in core.lanes.values():
            await lane.callback_ended()
        for lane in core.lanes.values():
            await core.session.line(lane.name).settled()
        await core.events.drained()
        await core.session.close(context)


def _everything(event: HarnessEvent) -> bool:
    return True
