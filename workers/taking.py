"""How a worker takes a new operation that an API host offers it: accepted and driven under one claim (design §6)."""

from __future__ import annotations

from collections.abc import Callable

from harness.clock import Clock
from harness.context import Context
from harness.errors import SessionNotFound, StorageError
from harness.result import Ok
from workers.commands import Accept, Reply
from workers.live import LiveSession, Retired
from workers.registry import Registry
from workers.slots import Slots


class NoRoom(Retired):
    """Every place here is taken, or this process is leaving: ask another."""


class Taking:
    """A worker's side of `Placement`. It takes only what it can begin at once: whatever would wait for
    a place is better accepted elsewhere and dispatched to whoever has one first."""

    def __init__(
        self, registry: Registry, slots: Slots, clock: Clock, *, takes_work: Callable[[], bool]
    ) -> None:
        self._registry = registry
        self._slots = slots
        self._clock = clock
        self._takes_work = takes_work

    async def take(
        self, tenant_id: str, session_id: str, command: Accept, context: Context, *, until: int
    ) -> Reply:
        """Accept an operation, under a claim of this process, unless it is later than `until` (Unix ms):
        nobody waits for the answer then, and who asked may have been told otherwise. Raises `NoRoom`,
        `Retired` when it is late or the session is another's or cannot be opened here,
        `SessionNotFound`, and what `LiveSession.execute` raises."""
        # Not in line for a place that somebody who waits has a better right to.
        if not self._takes_work() or self._slots.free <= 0:
            raise NoRoom
        slot = self._slots.ask(tenant_id)
        taken = False
        try:
            if not slot.granted:
                raise NoRoom
            try:
                async with self._registry.owning(tenant_id, session_id) as found:
                    if not isinstance(found, LiveSession):
                        raise Retired
                    if self._clock.now_ms() > until:
                        raise Retired
                    reply = await found.execute(command, context)
                    operation_id = command.request.operation_id
                    if isinstance(reply, Ok) and operation_id is not None:
                        found.take_over(slot, operation_id)
                        taken = True
                    return reply
            except SessionNotFound:
                raise
            except StorageError as error:
                # Nothing was accepted. Whoever asked finds the same out, in words that fit its own case.
                raise Retired from error
        finally:
            if not taken:
                slot.give_back()
