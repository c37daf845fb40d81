"""The sessions that this process owns now, each opened once however many ask for it at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TypeAlias

from harness.context import BACKGROUND
from harness.environment import Environment
from harness.errors import SessionNotFound
from harness.operation.results import OperationAdmission
from harness.runtime.harness import AgentHarness
from harness.session.once import Once
from storage_pg.claimed import HeldElsewhere, NoSuchSession
from storage_pg.idempotency import once_under
from storage_pg.lease import HostLease
from storage_pg.receipts import find_receipt
from storage_pg.sessions import OwnedSession, PostgresSessions
from storage_pg.storage import Pool
from workers.agents import Agents
from workers.commands import RequestKey
from workers.execute import Surroundings
from workers.hints import Hints
from workers.live import EndReason, LiveSession, Services

logger = logging.getLogger(__name__)

Ownership: TypeAlias = LiveSession | HeldElsewhere


class _Opening:
    """One claim under way, and how many callers wait for what comes of it."""

    def __init__(self, task: asyncio.Task[Ownership]) -> None:
        self.task = task
        self.callers = 0


class Registry:
    """Claims sessions, keeps them while they are owned, forgets them when they are given back."""

    def __init__(
        self,
        pool: Pool,
        sessions: PostgresSessions,
        lease: HostLease,
        agents: Agents,
        hints: Hints,
        environment: Environment,
        services: Services,
    ) -> None:
        self._pool = pool
        self._sessions = sessions
        self._lease = lease
        self._agents = agents
        self._hints = hints
        self._environment = environment
        self._services = services
        self._live: dict[str, LiveSession] = {}
        # By tenant too: an id that a stranger guessed is no session of the stranger's.
        self._opening: dict[tuple[str, str], _Opening] = {}

    def get(self, tenant_id: str, session_id: str) -> LiveSession | None:
        """The session if this process owns it. Raises `SessionNotFound` for another tenant's."""
        live = self._live.get(session_id)
        if live is not None and live.tenant_id != tenant_id:
            raise SessionNotFound(session_id)
        return live

    @property
    def driving(self) -> int:
        """How many passes run in this process."""
        return sum(live.driving for live in self._live.values())

    def all(self) -> list[LiveSession]:
        """Every owned session."""
        return list(self._live.values())

    @property
    def busy(self) -> bool:
        """Whether anything is owned or being claimed."""
        return bool(self._live or self._opening)

    @asynccontextmanager
    async def owning(self, tenant_id: str, session_id: str) -> AsyncGenerator[Ownership]:
        """Claim the session, or join whoever owns or claims it here. It stays owned inside the block.

        Raises `SessionNotFound`, `NewerVersion`, `StorageCorrupt`, `HarnessFault`, `HostDown` and
        `HostFull`.
        """
        asked = (tenant_id, session_id)
        opening = self._opening.get(asked)
        if opening is None:
            task = asyncio.get_running_loop().create_task(self._open(tenant_id, session_id))
            opening = self._opening[asked] = _Opening(task)
            task.add_done_callback(lambda done: self._opened(asked, done))
        opening.callers += 1
        try:
            found = await asyncio.shield(opening.task)
            if isinstance(found, LiveSession) and found.tenant_id != tenant_id:
                raise SessionNotFound(session_id)
            yield found
        finally:
            opening.callers -= 1
            live = self._live.get(session_id)
            if live is not None:
                live.look()

    async def end_all(self, reason: EndReason) -> None:
        """Give every session back, stopping what runs, and wait for it."""
        while self.busy:
            for live in self.all():
                live.end(reason)
            waiting = [asyncio.ensure_future(live.closed.wait()) for live in self.all()]
            waiting += [asyncio.ensure_future(_end_of(o.task)) for o in self._opening.values()]
            await asyncio.wait(waiting)

    def forget(self, live: LiveSession) -> None:
        """The session was given back."""
        if self._live.get(live.session_id) is live:
            del self._live[live.session_id]

    def _opened(self, asked: tuple[str, str], task: asyncio.Task[Ownership]) -> None:
        self._opening.pop(asked, None)
        if not task.cancelled():
            task.exception()  # whoever waits has it

    async def _open(self, tenant_id: str, session_id: str) -> Ownership:
        while (live := self.get(tenant_id, session_id)) is not None:
            if not live.ending:
                return live
            await live.closed.wait()
        claimed = await self._sessions.claim(tenant_id, session_id)
        match claimed:
            case HeldElsewhere():
                return claimed
            case NoSuchSession():
                raise SessionNotFound(session_id)
            case OwnedSession():
                return await self._attach(claimed)

    async def _attach(self, owned: OwnedSession) -> LiveSession:
        tenant_id, session_id = owned.claimed.tenant_id, owned.claimed.id
        drives = self._services.passes.duty.drives
        try:
            options = await self._agents.options(tenant_id, session_id, owned.claimed.agent)
            session = owned.session(self._environment)
            harness, _ = await AgentHarness.create(session, options, BACKGROUND)
        except BaseException:
            await owned.storage.close(BACKGROUND)
            raise

        async def find_admission(operation_id: str) -> OperationAdmission | None:
            return await self.find_admission(tenant_id, session_id, operation_id)

        def once(request: RequestKey | None) -> Once | None:
            if request is None:
                return None
            return once_under(self._pool, tenant_id, request.key, request.attempt)

        surroundings = Surroundings(drives, self._agents.knows, find_admission, once)
        opening = self._opening[tenant_id, session_id]
        live = LiveSession(
            owned,
            harness,
            surroundings,
            self._services,
            self._lease.host_id,
            lambda: opening.callers > 0,
        )
        self._live[session_id] = live
        self._lease.watch(session_id, live.fence, live.lost)
        live.start()
        if drives:
            self._hints.owned(session_id)
        return live

    async def find_admission(
        self, tenant_id: str, session_id: str, operation_id: str
    ) -> OperationAdmission | None:
        """The admission that an operation of this session had; None when it is not known."""
        known = await find_receipt(self._pool, tenant_id, operation_id)
        if known is None or known.session_id != session_id:
            return None
        return OperationAdmission(
            operation_id=operation_id, kind=known.kind, started_at=known.accepted_at
        )


async def _end_of(task: asyncio.Task[Ownership]) -> None:
    await asyncio.wait([task])
