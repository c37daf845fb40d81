"""Sees to it that an operation is driven: claims its session when there is a place, or hands it to the owner (design §6)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from harness.clock import Clock
from harness.context import BACKGROUND
from harness.errors import NewerVersion, SessionNotFound, StorageError
from storage_pg.open_operations import DueOperation, whereabouts
from storage_pg.storage import Pool
from workers.commands import Drive
from workers.live import LiveSession
from workers.logs import about
from workers.peers import NotThere, PeerRefused, Peers
from workers.poison import is_excused
from workers.registry import Registry
from workers.slots import Slot, Slots
from workers.unopened import Unopened

logger = logging.getLogger(__name__)

# How long a drive waits for a place here, and then for a session that an API host holds.
_PLACE_SECONDS = 5.0
_DRIVE_SECONDS = 10.0
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1


class DriveJobs:
    """What a worker does for operations that wait for a drive, whether a job of the queue names them
    or its own dispatcher. One that comes to nothing costs time only: it is dispatched again while the
    operation still waits."""

    def __init__(
        self,
        pool: Pool,
        registry: Registry,
        peers: Peers,
        slots: Slots,
        unopened: Unopened,
        clock: Clock,
        rng: random.Random,
        *,
        draining: Callable[[], bool],
        host_id: Callable[[], str | None],
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._peers = peers
        self._slots = slots
        self._unopened = unopened
        self._clock = clock
        self._rng = rng
        self._draining = draining
        self._host_id = host_id
        self._coming: dict[str, asyncio.Task[str]] = {}

    def take(self, operation: DueOperation) -> None:
        """Drive an operation that this process dispatched to itself."""
        if operation.operation_id in self._coming:
            return
        slot = self._slots.ask(operation.tenant_id)
        self._start(slot, operation)

    async def drive(self, tenant_id: str, session_id: str, lane: str, operation_id: str) -> str:
        """Drive an operation that a job names. Returns a word on what was done.

        Where there is no place, it waits for one without keeping the job: jobs are few, and whoever
        has the better right to the next place may come in one of them.
        """
        if operation_id in self._coming:
            return "coming"
        operation = DueOperation(operation_id, tenant_id, session_id, lane, 0)
        word = self._at_once(operation)
        if word is not None:
            return word
        slot = self._slots.ask(tenant_id)
        task = self._start(slot, operation)
        return await asyncio.shield(task) if slot.granted else "waits"

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._coming.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _at_once(self, operation: DueOperation) -> str | None:
        """What can be said without a place."""
        if self._draining():
            return "draining"
        try:
            live = self._registry.get(operation.tenant_id, operation.session_id)
        except SessionNotFound:
            return "gone"
        if live is None or live.ending:
            return None
        live.look()
        return "owned"

    def _start(self, slot: Slot, operation: DueOperation) -> asyncio.Task[str]:
        granted = asyncio.Event()
        slot.call = granted.set
        if slot.granted:
            granted.set()
        task = asyncio.get_running_loop().create_task(self._come(slot, granted, operation))
        self._coming[operation.operation_id] = task
        task.add_done_callback(lambda _: self._coming.pop(operation.operation_id, None))
        return task

    async def _come(self, slot: Slot, granted: asyncio.Event, operation: DueOperation) -> str:
        word = "full"
        try:
            with about(
                tenant=operation.tenant_id,
                session=operation.session_id,
                lane=operation.lane,
                operation=operation.operation_id,
            ):
                try:
                    async with asyncio.timeout(_PLACE_SECONDS):
                        await granted.wait()
                except TimeoutError:
                    return word
                word = await self._claim_or_hand_over(slot, operation)
                return word
        finally:
            # A session that was claimed has taken it over.
            if word != "claimed":
                slot.give_back()

    async def _claim_or_hand_over(self, slot: Slot, operation: DueOperation) -> str:
        tenant_id, session_id = operation.tenant_id, operation.session_id
        deadline = self._clock.monotonic() + _DRIVE_SECONDS
        pause = _FIRST_PAUSE
        while not self._draining() and self._clock.monotonic() < deadline:
            try:
                async with self._registry.owning(tenant_id, session_id) as found:
                    if isinstance(found, LiveSession):
                        found.take_over(slot, operation.operation_id)
                        return "claimed"
            except Exception as error:  # noqa: BLE001 -- an application's profile, tools and models are opened with it
                return await self._not_opened(operation, error)
            try:
                word = await self._hand_over(operation)
            except SessionNotFound:
                return "gone"
            except (StorageError, PeerRefused) as error:
                logger.warning("operation %s is not driven: %s", operation.operation_id, error)
                return "unable"
            if word is not None:
                return word
            await self._clock.sleep(pause * (0.5 + self._rng.random()))
            pause = min(pause * 1.7, _LONGEST_PAUSE)
        return "late"

    async def _hand_over(self, operation: DueOperation) -> str | None:
        """Tell the owner; None when there is none that drives."""
        tenant_id, session_id = operation.tenant_id, operation.session_id
        place = await whereabouts(self._pool, tenant_id, session_id)
        if place is None:
            return "gone"
        owner = place.owner
        # An API host gives the session back in a moment: wait for that.
        if owner is None or owner.role != "worker" or owner.host_id == self._host_id():
            return None
        command = Drive(lane=operation.lane, operation_id=operation.operation_id)
        answer = await self._peers.execute(owner, tenant_id, session_id, command, BACKGROUND)
        return None if isinstance(answer, NotThere) else "handed over"

    async def _not_opened(self, operation: DueOperation, error: Exception) -> str:
        if isinstance(error, SessionNotFound):
            return "gone"
        if isinstance(error, NewerVersion):
            # A process that can read it will take it.
            return "newer"
        if is_excused(error):
            logger.warning("operation %s is not driven here: %s", operation.operation_id, error)
            return "unable"
        try:
            await self._unopened.failed(
                operation.tenant_id, operation.session_id, operation.operation_id, error
            )
        except StorageError as unknown:
            logger.warning("a drive of %s is not counted: %s", operation.operation_id, unknown)
        return "unopened"
