"""A session as it is committed, for when nobody owns it: inspected and shown without owning it (design §6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar, assert_never

from harness.codec import encode
from harness.context import BACKGROUND, Context
from harness.environment import Environment
from harness.errors import StorageCorrupt
from harness.operation import values
from harness.result import Err, Ok
from harness.runtime.attach import restore_lane
from harness.runtime.harness import AgentHarness
from harness.session.session import MAIN_LANE, Session
from harness.settings import LaneConfiguration
from harness.storage.address import Value
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import CommitResult, StoredValue
from harness.storage.writes import SetValue, Write
from storage_pg.reader import ReadOnlySession, SessionReader
from storage_pg.sessions import PostgresSessions
from workers.agents import Agents
from workers.commands import Inspect, InspectLanes, Reply, UnknownLane
from workers.watching import NoSuchLane, SnapshotItem

T = TypeVar("T")


class CommittedView:
    """A `Storage` over a reader of one instant.

    A session that was never opened has no configuration for its main lane yet; the one it will get is
    shown, and not written.
    """

    def __init__(self, reader: SessionReader) -> None:
        self._reader = reader
        self._seed: LaneConfiguration | None = None
        self.get_entries = reader.get_entries
        self.scan_values = reader.scan_values
        self.read_list = reader.read_list
        self.scan_branch = reader.scan_branch
        self.scan_branch_structure = reader.scan_branch_structure
        self.scan_entries = reader.scan_entries
        self.scan_usage = reader.scan_usage
        self.get_stats = reader.get_stats
        self.close = reader.close

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """The committed value, or the configuration that an unopened session will start with."""
        found = await self._reader.get_value(address, context)
        wanted = values.lane_config(MAIN_LANE)
        if found is not None or self._seed is None:
            return found
        if (address.namespace, address.key) != (wanted.namespace, wanted.key):
            return None
        seed: T = self._seed  # pyright: ignore[reportAssignmentType]  # the address names this type
        return StoredValue(address, seed, 0)

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """Keeps the seed configuration for this view; raises `ReadOnlySession` for anything else."""
        wanted = values.lane_config(MAIN_LANE)
        for write in writes:
            match write:
                case SetValue(
                    namespace=wanted.namespace, key=wanted.key, value=LaneConfiguration() as seed
                ):
                    self._seed = seed
                case _:
                    raise ReadOnlySession("this session is open for reading only")
        return CommitResult(0, tuple(range(len(writes))), 0)


class CommittedSessions:
    """Reads unowned sessions, each time as of one instant."""

    def __init__(
        self, sessions: PostgresSessions, agents: Agents, environment: Environment
    ) -> None:
        self._sessions = sessions
        self._agents = agents
        self._environment = environment

    async def inspect(
        self,
        tenant_id: str,
        session_id: str,
        agent: str | None,
        command: Inspect | InspectLanes,
        context: Context,
    ) -> Reply:
        """Answer a reading command."""
        async with self._sessions.snapshot(tenant_id, session_id) as reader:
            harness = await self._attach(reader, tenant_id, session_id, agent)
            match command:
                case InspectLanes():
                    return Ok(encode(await harness.lanes(context)))
                case Inspect(lane=name):
                    lane = await harness.lane(name, context)
                    if lane is None:
                        return Err(UnknownLane(message=f"no lane {name!r}", lane=name))
                    return Ok(encode(await lane.inspect_execution(context)))
                case _:
                    assert_never(command)

    async def snapshot(
        self, tenant_id: str, session_id: str, agent: str | None, lane: str | None
    ) -> SnapshotItem:
        """What a watcher is shown. Raises `NoSuchLane`."""
        async with self._sessions.snapshot(tenant_id, session_id) as reader:
            harness = await self._attach(reader, tenant_id, session_id, agent)
            if lane is None:
                session_watch = await harness.watch_session(BACKGROUND)
                session_watch.unsubscribe()
                return SnapshotItem(encode(session_watch.snapshot))
            facade = await harness.lane(lane, BACKGROUND)
            if facade is None:
                raise NoSuchLane(lane)
            lane_watch = await facade.watch(BACKGROUND)
            lane_watch.unsubscribe()
            return SnapshotItem(encode(lane_watch.snapshot))

    def reader(self, tenant_id: str, session_id: str) -> SessionReader:
        """What is committed; each read sees the newest."""
        return self._sessions.reader(tenant_id, session_id)

    async def damaged_lanes(
        self, tenant_id: str, session_id: str, lanes: Iterable[str]
    ) -> dict[str, str]:
        """Which of these lanes cannot be restored, each with the reason."""
        damaged: dict[str, str] = {}
        async with self._sessions.snapshot(tenant_id, session_id) as reader:
            metadata = SessionMetadata(id=session_id, created_at=0)
            view = CommittedView(reader)
            session = Session(view, metadata, self._environment)
            for lane in lanes:
                try:
                    await restore_lane(session, lane, BACKGROUND)
                except StorageCorrupt as error:
                    damaged[lane] = str(error)
        return damaged

    async def _attach(
        self, reader: SessionReader, tenant_id: str, session_id: str, agent: str | None
    ) -> AgentHarness:
        options = await self._agents.options(tenant_id, session_id, agent)
        metadata = SessionMetadata(id=session_id, created_at=0)
        session = Session(CommittedView(reader), metadata, self._environment)
        harness, _ = await AgentHarness.create(session, options, BACKGROUND)
        return harness
