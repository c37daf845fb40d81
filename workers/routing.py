"""Where a command runs: here, on the host that owns the session, or here after a claim (design §6)."""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from harness.clock import Clock
from harness.codec import encode
from harness.context import Context
from harness.errors import (
    HarnessClosed,
    HarnessFault,
    LaneBusy,
    OperationCancelledByCaller,
    SessionNotFound,
    StorageError,
)
from harness.ids import IdGenerator
from harness.operation.results import OperationAdmission
from harness.result import Err, Ok
from harness.session.once import OnceUnknown
from storage_pg.claimed import HeldElsewhere
from storage_pg.lease import HostDown
from storage_pg.open_operations import (
    SessionOwner,
    wake_operation,
    whereabouts,
)
from storage_pg.receipts import find_receipt
from storage_pg.storage import Pool
from workers.commands import (
    READING,
    WAKING,
    Accept,
    Command,
    Inspect,
    InspectLanes,
    OperationIdTaken,
    Reply,
    Resume,
    repeatable,
)
from workers.committed import CommittedSessions
from workers.execute import NeedsDriver
from workers.live import LiveSession, Retired
from workers.meter import SILENT, HostMeter
from workers.peers import Asked, NotThere, PeerRefused, Peers
from workers.placement import FAILED_SECONDS, FULL_SECONDS, REFUSED_SECONDS, Placement
from workers.registry import Registry

logger = logging.getLogger(__name__)

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.25
_STILL_OWNER_SECONDS = 0.5


class OwnerUnreachable(StorageError):
    """The session's owner could not be reached in time, and nobody else could take the session. The
    command was not executed; try again."""


class OutcomeUnknown(StorageError):
    """The owner went away while it ran the command, which may or may not have been executed; look
    before you repeat it."""


@dataclass(frozen=True, slots=True)
class _Again:
    """Start over. `unknown`: the command may have been executed; `soon`: without a pause."""

    reason: str
    unknown: bool = False
    soon: bool = False


class Router:
    """Runs commands for this process's callers."""

    def __init__(
        self,
        pool: Pool,
        registry: Registry,
        peers: Peers,
        committed: CommittedSessions,
        clock: Clock,
        ids: IdGenerator,
        rng: random.Random,
        *,
        seconds: float,
        woken: Callable[[], None],
        host_id: Callable[[], str | None],
        placement: Placement | None = None,
        meter: HostMeter = SILENT,
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._peers = peers
        self._committed = committed
        self._clock = clock
        self._ids = ids
        self._rng = rng
        self._seconds = seconds
        self._woken = woken
        self._host_id = host_id
        self._placement = placement
        self._meter = meter

    async def execute(
        self, tenant_id: str, session_id: str, command: Command, context: Context
    ) -> Reply:
        """Run a command on whoever owns the session.

        Raises `SessionNotFound`, `OwnerUnreachable`, `OutcomeUnknown`, `HostFull`, `NewerVersion`,
        `StorageCorrupt`, and `OperationCancelledByCaller` when the context was cancelled before the
        command ran.
        """
        if not _is_id(session_id):
            raise SessionNotFound(session_id)
        if isinstance(command, Accept):
            prepared = await self._prepare(tenant_id, session_id, command)
            if not isinstance(prepared, Accept):
                return prepared
            command = prepared
        deadline = self._clock.monotonic() + self._seconds
        pause = _FIRST_PAUSE
        unknown = False
        while True:
            if context.cancelled:
                raise OperationCancelledByCaller
            # Where one worker did not answer, the next may not either: once is enough of that.
            offers = not unknown
            outcome = await self._attempt(tenant_id, session_id, command, context, offers=offers)
            if not isinstance(outcome, _Again):
                return await self._settled(tenant_id, session_id, command, outcome, unknown=unknown)
            unknown = unknown or outcome.unknown
            if unknown and not repeatable(command):
                raise OutcomeUnknown(f"the outcome of the command is unknown: {outcome.reason}")
            if self._clock.monotonic() >= deadline:
                why = f"session {session_id} has no reachable owner: {outcome.reason}"
                raise OutcomeUnknown(why) if unknown else OwnerUnreachable(why)
            if unknown and isinstance(command, Accept):
                known = await self._admission(tenant_id, session_id, command)
                if known is not None:
                    return known
            if not outcome.soon:
                await self._clock.sleep(pause * (0.5 + self._rng.random()))
                pause = min(pause * 1.7, _LONGEST_PAUSE)

    # Accepting twice is accepting once

    async def _prepare(self, tenant_id: str, session_id: str, command: Accept) -> Accept | Reply:
        """Give the operation its id before anything is tried, so that trying again is safe."""
        if command.request.operation_id is None:
            request = msgspec.structs.replace(command.request, operation_id=self._ids.next())
            return msgspec.structs.replace(command, request=request)
        known = await self._admission(tenant_id, session_id, command)
        return command if known is None else known

    async def _settled(
        self, tenant_id: str, session_id: str, command: Command, reply: Reply, *, unknown: bool
    ) -> Reply:
        """A refused request may be the second time of one that was accepted, and is perhaps over by
        now: by an attempt whose answer got lost, or by its twin on another host."""
        if not isinstance(command, Accept) or not isinstance(reply, Err):
            return reply
        known = await self._admission(tenant_id, session_id, command)
        if known is None and unknown and isinstance(reply.error, LaneBusy):
            # The attempt that nobody answered may still come after whatever the lane is busy with.
            raise OutcomeUnknown(f"it may be accepted yet: {reply.error.message}")
        return known or reply

    async def _admission(self, tenant_id: str, session_id: str, command: Accept) -> Reply | None:
        operation_id = command.request.operation_id
        assert operation_id is not None
        try:
            known = await find_receipt(self._pool, tenant_id, operation_id)
        except StorageError:
            return None  # no such id can be looked up: the owner says what is wrong with it
        if known is None:
            return None
        if known.session_id != session_id or known.lane != command.lane:
            return Err(
                OperationIdTaken(
                    message=f"operation {operation_id} is another lane's", operation_id=operation_id
                )
            )
        admission = OperationAdmission(
            operation_id=operation_id, kind=known.kind, started_at=known.accepted_at
        )
        return Ok(encode(admission))

    # One attempt

    async def _attempt(
        self,
        tenant_id: str,
        session_id: str,
        command: Command,
        context: Context,
        *,
        offers: bool,
    ) -> Reply | _Again:
        live = self._registry.get(tenant_id, session_id)
        if live is not None:
            return await self._here(live, command, context)
        if isinstance(command, READING):
            return await self._read(tenant_id, session_id, command, context)
        if isinstance(command, Accept) and self._placement is not None and offers:
            offered = await self._offer(self._placement, tenant_id, session_id, command, context)
            if offered is not None:
                return offered
        try:
            async with self._registry.owning(tenant_id, session_id) as found:
                if isinstance(found, LiveSession):
                    return await self._here(found, command, context)
        except HostDown as error:
            return _Again(str(error))
        except (Retired, HarnessFault) as error:
            return _Again(str(error))
        return await self._there(tenant_id, session_id, command, found, context)

    async def _offer(
        self,
        placement: Placement,
        tenant_id: str,
        session_id: str,
        command: Accept,
        context: Context,
    ) -> Reply | _Again | None:
        """Have a worker take it: one claim, no job, no wait for either. None when it is to be accepted
        in the usual way."""
        worker = await placement.choose(session_id)
        if worker is None:
            return None
        try:
            with placement.asking(worker):
                answer = await self._peers.take(worker, tenant_id, session_id, command, context)
        except PeerRefused as error:
            logger.warning("worker %s takes nothing that is offered: %s", worker.host_id, error)
            placement.rest(worker, REFUSED_SECONDS)
            placement.forget(session_id)
            self._meter.offered("refused")
            return None
        if not isinstance(answer, NotThere):
            placement.took(worker, session_id)
            self._meter.offered("taken")
            return answer
        if answer.unknown:
            placement.rest(worker, FAILED_SECONDS)
            placement.forget(session_id)
            self._meter.offered("no_answer")
            return _Again(answer.reason, unknown=True, soon=True)
        if answer.full:
            placement.rest(worker, FULL_SECONDS)
            self._meter.offered("no_room")
        else:
            placement.forget(session_id)
            self._meter.offered("elsewhere")
        return None

    async def _here(self, live: LiveSession, command: Command, context: Context) -> Reply | _Again:
        if live.harness.faulted is not None:
            await live.closed.wait()
            return _Again("the session stopped", soon=True)
        try:
            async with asyncio.timeout(self._seconds):
                reply = await live.execute(command, context)
        except Retired:
            await live.closed.wait()
            return _Again("the session was given back", soon=True)
        except NeedsDriver:
            await live.closed.wait()
            self._woken()
            return _Again("the lane's operation must be driven first")
        except OnceUnknown as error:
            return _Again(str(error))
        except (HarnessFault, HarnessClosed) as error:
            return _Again(str(error), unknown=True)
        except TimeoutError:
            live.end("moved")
            raise OutcomeUnknown("the command took too long") from None
        if not live.drives and isinstance(reply, Ok):
            await self._wake(live, command, reply)
        return reply

    async def _wake(self, live: LiveSession, command: Command, reply: Ok[bytes]) -> None:
        """What was accepted or changed here needs a worker."""
        if isinstance(command, Resume):
            # Only a poll's row says more than the state does. A retry's wait is the state's: a row
            # that is due before it would bring worker after worker to a session with nothing to do.
            for operation in live.polled_operations(command.lane):
                await wake_operation(
                    self._pool,
                    live.tenant_id,
                    live.session_id,
                    operation,
                    self._clock.now_ms(),
                )
        if isinstance(command, WAKING):
            self._woken()

    async def _there(
        self,
        tenant_id: str,
        session_id: str,
        command: Command,
        found: HeldElsewhere,
        context: Context,
    ) -> Reply | _Again:
        place = await whereabouts(self._pool, tenant_id, session_id)
        if place is None:
            raise SessionNotFound(session_id)
        owner = place.owner
        if owner is None or owner.host_id == self._host_id():
            return _Again("ownership is changing")
        answer = await self._ask(owner, tenant_id, session_id, command, context)
        if isinstance(answer, NotThere):
            return _Again(answer.reason, unknown=answer.unknown)
        return answer

    async def _ask(
        self,
        owner: SessionOwner,
        tenant_id: str,
        session_id: str,
        command: Command,
        context: Context,
    ) -> Asked:
        """Ask the owner, and stop waiting when it stops being the owner: a frozen host answers
        nothing, and is cut off long before a request to it times out."""
        asking = asyncio.ensure_future(
            self._peers.execute(owner, tenant_id, session_id, command, context)
        )
        try:
            while True:
                done, _ = await asyncio.wait([asking], timeout=_STILL_OWNER_SECONDS)
                if done:
                    return asking.result()
                try:
                    place = await whereabouts(self._pool, tenant_id, session_id)
                except StorageError:
                    # No news of the owner; the question to it has a time limit of its own.
                    continue
                if place is None or place.owner != owner:
                    return NotThere("it stopped owning the session", unknown=True)
        finally:
            asking.cancel()

    async def _read(
        self,
        tenant_id: str,
        session_id: str,
        command: Inspect | InspectLanes,
        context: Context,
    ) -> Reply | _Again:
        place = await whereabouts(self._pool, tenant_id, session_id)
        if place is None:
            raise SessionNotFound(session_id)
        owner = place.owner
        if owner is not None and owner.role == "worker" and owner.host_id != self._host_id():
            answer = await self._ask(owner, tenant_id, session_id, command, context)
            if not isinstance(answer, NotThere):
                return answer
            # Gone or given back: what is committed is the answer.
        return await self._committed.inspect(tenant_id, session_id, place.agent, command, context)


def _is_id(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False
