"""One open session: its reads, and the one way to write — a whole job on a lane's line (§2.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from harness.context import Context
from harness.entries import Entry
from harness.environment import Environment
from harness.errors import (
    HarnessClosed,
    InvalidLane,
    InvariantDefect,
    LaneExists,
    UnknownTarget,
)
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.result import Err, Ok, Result
from harness.session.line import MutationLine
from harness.session.once import Once, made_before
from harness.settings import LaneConfiguration
from harness.storage.address import Value, ValueList
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    ListElement,
    ListRead,
    Storage,
    StoredValue,
)
from harness.storage.writes import (
    AppendList,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
    set_value,
)
from harness.telemetry import NOOP_TELEMETRY, AttributeName, AttributeValue
from harness.usage import SessionStats, Usage

T = TypeVar("T")

MAIN_LANE = "main"
MAX_LANE_NAME = 200


class SessionMutator:
    """The capability of one mutation job: reads, and at most one commit. Valid only inside the job."""

    __slots__ = ("_committed", "_session", "_valid", "lane")

    def __init__(self, session: Session, lane: str) -> None:
        self._session = session
        self.lane = lane
        self._committed = False
        self._valid = True

    def expire(self) -> None:
        """End the capability; the line calls this when the job is over."""
        self._valid = False

    def _storage(self) -> Storage:
        if not self._valid:
            raise InvariantDefect("a mutator was used after its job had ended")
        return self._session.storage

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """The job's only commit; a second attempt raises even when the first failed."""
        storage = self._storage()
        if self._committed:
            raise InvariantDefect("one mutation commits at most once")
        self._committed = True
        return await self._session.commit(storage, writes, context, lane=self.lane)

    async def get_entries(self, ids: Sequence[str], context: Context) -> Mapping[str, Entry]:
        """See `Storage.get_entries`."""
        return await self._storage().get_entries(ids, context)

    async def get_value(self, address: Value[T], context: Context) -> StoredValue[T] | None:
        """See `Storage.get_value`."""
        return await self._storage().get_value(address, context)

    async def scan_values(self, prefix: Value[T], context: Context) -> list[StoredValue[T]]:
        """See `Storage.scan_values`."""
        return await self._storage().scan_values(prefix, context)

    async def read_list(
        self, address: ValueList[T], options: ListRead | None, context: Context
    ) -> list[ListElement[T]]:
        """See `Storage.read_list`."""
        return await self._storage().read_list(address, options, context)

    async def scan_branch(self, query: BranchScan, context: Context) -> list[Entry]:
        """See `Storage.scan_branch`."""
        return await self._storage().scan_branch(query, context)


Mutation = Callable[[SessionMutator, Context], Awaitable[T]]


class Session:
    """An open session. While a harness owns it, everything else about it is read-only (§5.2)."""

    def __init__(
        self,
        storage: Storage,
        metadata: SessionMetadata,
        environment: Environment,
        on_close: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.storage = storage
        self.metadata = metadata
        self.environment = environment
        self.totals: Usage | None = None
        self._lines: dict[str, MutationLine] = {}
        self._on_close = on_close
        self._sealed = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        """The session's id."""
        return self.metadata.id

    @property
    def sealed(self) -> bool:
        """Whether new commits are refused."""
        return self._sealed

    def seal(self) -> None:
        """Refuse every commit that is not already under way (§4.7)."""
        self._sealed = True

    def line(self, lane: str) -> MutationLine:
        """The mutation line of a lane."""
        line = self._lines.get(lane)
        if line is None:
            line = self._lines[lane] = MutationLine()
        return line

    def enqueue(self, lane: str, mutation: Mutation[T], context: Context) -> asyncio.Future[T]:
        """Queue a mutation job now and return its future."""

        async def job() -> T:
            mutator = SessionMutator(self, lane)
            try:
                return await mutation(mutator, context)
            finally:
                mutator.expire()

        return self.line(lane).submit(job)

    async def mutate(self, lane: str, mutation: Mutation[T], context: Context) -> T:
        """Run one read-decide-commit job on the lane's line (§2.8).

        The job must not call another mutating method, wait for the lane, or do provider, tool,
        hook or timer work.
        """
        return await asyncio.shield(self.enqueue(lane, mutation, context))

    async def commit(
        self,
        storage: Storage,
        writes: Sequence[Write],
        context: Context,
        *,
        lane: str | None = None,
    ) -> CommitResult:
        """Commit through the close barrier, with its telemetry span; nothing to write has none."""
        if self._sealed:
            raise HarnessClosed
        if context.telemetry is NOOP_TELEMETRY or not writes:
            return await storage.commit(writes, context)
        attributes: dict[AttributeName, AttributeValue] = {
            "pi.session.id": self.id,
            "pi.session.item_count": len(writes),
            "pi.session.item_kinds": tuple(sorted({_kind(write) for write in writes})),
        }
        if lane is not None:
            attributes["pi.lane.name"] = lane
        span = context.telemetry.start("pi.session.write", attributes)
        try:
            result = await storage.commit(writes, context)
        except BaseException as error:
            span.end(error=type(error).__name__)
            raise
        span.end({"pi.session.first_seq": result.first_seq, "pi.session.last_seq": result.seqs[-1]})
        return result

    async def lane_names(self, context: Context) -> list[str]:
        """Every lane of the session."""
        leaves = await self.storage.scan_values(values.lane_leaf_inventory_prefix(), context)
        return [leaf.address.key for leaf in leaves]

    async def create_lane(
        self,
        name: str,
        at: str | None,
        configuration: LaneConfiguration,
        on_committed: Callable[[Context], Awaitable[None] | None] | None,
        context: Context,
        *,
        once: Once | None = None,
    ) -> Result[None, LaneExists | InvalidLane | UnknownTarget]:
        """Create a lane at an entry with a total configuration (§2.3).

        `on_committed` runs in the commit's continuation; what it returns is awaited after the line
        is free. If it fails, the lane exists all the same and this call raises.
        """
        problem = lane_name_problem(name)
        if problem is not None:
            return Err(
                InvalidLane(message=f"invalid lane name: {problem}", lane=name, reason=problem)
            )
        published: Awaitable[None] | None = None

        async def mutation(
            mutator: SessionMutator, inner: Context
        ) -> Result[None, LaneExists | InvalidLane | UnknownTarget]:
            nonlocal published
            if await made_before(once, inner) is not None:
                return Ok(None)
            if await mutator.get_value(values.lane_leaf(name), inner) is not None:
                return Err(LaneExists(message=f"lane {name} exists", lane=name))
            if at is not None and at not in await mutator.get_entries([at], inner):
                return Err(UnknownTarget(message=f"no entry {at}", target_id=at))
            writes = (
                set_value(values.lane_config(name), configuration),
                set_value(values.lane_leaf(name), at),
                set_value(values.lane_state(name), IDLE_LANE),
            )
            await mutator.commit(writes if once is None else (*writes, once.note(name)), inner)
            if on_committed is not None:
                published = on_committed(inner)
            return Ok(None)

        result = await self.mutate(name, mutation, context)
        if published is not None:
            await published
        return result

    async def get_stats(self, context: Context) -> SessionStats:
        """See `Storage.get_stats`."""
        return await self.storage.get_stats(context)

    async def close(self, context: Context) -> None:
        """Refuse new work, finish admitted commits, release the session. Idempotent."""
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(context))
        await asyncio.shield(self._closing)

    async def _close(self, context: Context) -> None:
        self._sealed = True
        await self.storage.close(context)
        if self._on_close is not None:
            await self._on_close()


def lane_name_problem(name: str) -> str | None:
    """Why a lane name is not allowed, or None."""
    if not name:
        return "it is empty"
    if len(name) > MAX_LANE_NAME:
        return f"it is longer than {MAX_LANE_NAME} characters"
    if any(ord(char) < 0x20 or ord(char) == 0x7F for char in name):
        return "it contains control characters"
    return None


def _kind(write: Write) -> str:
    match write:
        case InsertEntry():
            return "entry"
        case InsertUsage():
            return "usage"
        case SetValue() | DeleteValue():
            return "value"
        case AppendList() | DeleteList():
            return "list"
