"""A process that can own sessions: a worker, or the API for the length of one command (design §6)."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, Literal, TypeAlias

from harness.context import Context
from harness.environment import Environment
from harness.errors import HarnessFault, SessionNotFound, StorageError
from storage_pg.connect import open_pool
from storage_pg.lease import HostDown, HostFull, HostIdentity, HostLease
from storage_pg.open_operations import (
    PassCount,
    begin_pass,
    due_of_session,
    excuse_pass,
    whereabouts,
)
from storage_pg.sessions import PostgresSessions
from storage_pg.storage import OpenOperation
from storage_pg.writer import SharedWriter
from workers.agents import Agents
from workers.commands import Command, Drive, Reply
from workers.committed import CommittedSessions
from workers.deaths import DeathWatch
from workers.dispatcher import Dispatcher
from workers.exposition import Exposition
from workers.following import Follower
from workers.hints import Hints
from workers.indexing import Indexer
from workers.internal_auth import ClusterSecret
from workers.internal_http import InternalServer
from workers.live import Duty, LiveSession, Services
from workers.metrics import Metrics
from workers.peers import NotThere, Peers
from workers.registry import Registry
from workers.routing import Router
from workers.settings import Settings
from workers.watching import Feed, StreamItem

logger = logging.getLogger(__name__)

Role: TypeAlias = Literal["worker", "api"]

# How long a drive job waits for room here, and then for a session that an API host holds.
_ROOM_SECONDS = 5.0
_DRIVE_SECONDS = 10.0
_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1


class SessionHost:
    """Owns sessions, runs commands, shows sessions to watchers. A `worker` drives what it owns, an
    `api` host never drives."""

    def __init__(
        self, settings: Settings, role: Role, environment: Environment | None = None
    ) -> None:
        self.settings = settings
        self.role: Role = role
        self.environment = environment or Environment.system()
        clock, rng = self.environment.clock, self.environment.rng
        self.metrics = Metrics()
        self.pool = open_pool(settings.database_url, size=settings.pool_size)
        self.writer = SharedWriter(settings.database_url)
        self.agents = Agents(settings, self.pool, clock)
        self.exposition = Exposition(self.metrics, self.pool, clock, settings.metrics_token)
        # Set when an operator tells this host to leave: whoever runs it drains it then.
        self.leaving = asyncio.Event()
        secret = ClusterSecret(settings.cluster_secret.get_secret_value(), clock)
        self._server = InternalServer(
            self,
            secret,
            address=(settings.internal_host, settings.internal_port),
            max_bytes=settings.internal_max_bytes,
            command_seconds=settings.command_seconds,
            metrics=self.exposition.render,
        )
        self.lease = HostLease(
            settings.direct_url,
            HostIdentity(
                name=settings.host_name or f"{platform.node()}/{os.getpid()}",
                role=role,
                url=settings.host_url or f"http://{settings.internal_host}:{self._server.port}",
                capacity=settings.max_drives,
            ),
            self.environment.ids,
            capacity=settings.max_sessions,
            heartbeat_seconds=settings.heartbeat_seconds,
            answer_seconds=settings.silent_seconds,
            on_leave=self.leaving.set,
        )
        self.sessions = PostgresSessions(
            self.pool,
            self.writer,
            self.environment,
            lease=self.lease,
            polls=settings.polls,
            meter=self.metrics,
        )
        self.hints = Hints(self.pool, settings.direct_url, rng)
        self.dispatcher = Dispatcher(
            self.pool,
            clock,
            tenant_limit=settings.tenant_drives,
            watches=role == "worker",
            meter=self.metrics,
        )
        self.registry = Registry(
            self.pool,
            self.sessions,
            self.lease,
            self.agents,
            self.hints,
            self.environment,
            self._services(),
        )
        self._peers = Peers(secret, settings.command_seconds)
        committed = CommittedSessions(self.sessions, self.agents, self.environment)
        self._router = Router(
            self.pool,
            self.registry,
            self._peers,
            committed,
            clock,
            self.environment.ids,
            rng,
            seconds=settings.command_seconds,
            woken=self.dispatcher.poke,
            host_id=lambda: self.lease.host_id,
        )
        self._follower = Follower(
            self.pool,
            self.registry,
            self._peers,
            committed,
            self.hints,
            clock,
            poll_seconds=settings.watch_poll_ms / 1000,
            draining=lambda: self.draining,
            host_id=lambda: self.lease.host_id,
        )
        self.indexer = Indexer(self.pool, clock, settings.search_metadata_fields)
        self.deaths = DeathWatch(
            self.pool,
            clock,
            rng,
            interval=settings.death_check_ms / 1000,
            silent_seconds=settings.silent_seconds,
            died=self.dispatcher.poke,
            meter=self.metrics,
        )
        self.draining = False
        self._tasks: list[asyncio.Task[Any]] = []
        self._room = asyncio.Event()
        self._arriving = 0
        self._closed = False
        self._show_gauges()

    # Lifecycle

    async def start(self) -> None:
        """Connect, become a live host, begin to answer. Raises what the database or the address
        says when that is impossible, `PoolerOnDirectUrl` among it."""
        await self.pool.open(wait=True)
        await self._server.start()
        await self.lease.start()
        self.hints.on_due(self._due_hint)
        self._run(self.hints.listen())
        self._run(self.dispatcher.run())
        if self.role == "worker":
            self._run(self.deaths.run())

    async def drain(self, seconds: float) -> None:
        """Leave: claim nothing more, let what is driven go on for this long, then stop it as a crash
        would and give everything back. Watchers are told to connect elsewhere."""
        if not self.draining:
            self.draining = True
            try:
                await self.lease.set_draining(True)
            except HostDown as error:
                logger.warning("the others were not told of the drain: %s", error)
        self.hints.wake_all()
        for live in self.registry.all():
            live.look()
        deadline = self.environment.clock.monotonic() + seconds
        while self.registry.busy and self.environment.clock.monotonic() < deadline:
            await self.environment.clock.sleep(0.02)
        await self.registry.end_all("draining")

    async def close(self) -> None:
        """Give everything back at once and disconnect. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.draining = True
        await self.registry.end_all("draining")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.close()
        await self._peers.close()
        await self.indexer.close()
        await self.hints.close()
        await self.lease.close()
        await self.writer.close()
        await self.pool.close()
        await self.agents.close()

    @property
    def host_id(self) -> str | None:
        """This incarnation; None while there is no lease connection."""
        return self.lease.host_id

    @property
    def ready(self) -> bool:
        """Whether this process can take work."""
        return not self.draining and self.lease.host_id is not None

    # Commands and watchers

    async def execute(
        self, tenant_id: str, session_id: str, command: Command, context: Context
    ) -> Reply:
        """Run a command wherever the session is owned (see `Router.execute`)."""
        return await self._router.execute(tenant_id, session_id, command, context)

    def watch(
        self, tenant_id: str, session_id: str, lane: str | None, context: Context
    ) -> AsyncGenerator[StreamItem]:
        """Watch a lane, or all lanes of a session (see `Follower.watch`)."""
        return self._follower.watch(tenant_id, session_id, lane, context)

    def get(self, tenant_id: str, session_id: str) -> LiveSession | None:
        """The session if it is owned here. Raises `SessionNotFound` for another tenant's."""
        return self.registry.get(tenant_id, session_id)

    # Drive jobs

    async def drive(self, tenant_id: str, session_id: str, lane: str, operation_id: str) -> str:
        """Make sure that an operation is driven: claim its session, or hand it to the owner.

        Returns a word on what was done. A job that comes to nothing costs time only: the dispatcher
        makes another one while the operation still waits.
        """
        if self.draining:
            return "draining"
        live = self.registry.get(tenant_id, session_id)
        if live is not None and not live.ending:
            live.look()
            return "owned"
        if not await self._wait_for_room():
            return "full"
        self._arriving += 1
        try:
            return await self._claim_or_hand_over(tenant_id, session_id, lane, operation_id)
        except SessionNotFound:
            return "gone"
        except (HostDown, HostFull, HarnessFault) as error:
            logger.warning("operation %s is not driven here: %s", operation_id, error)
            return "unable"
        except StorageError as error:
            logger.warning("operation %s cannot be driven: %s", operation_id, error)
            return "unable"
        finally:
            self._arriving -= 1

    async def _claim_or_hand_over(
        self, tenant_id: str, session_id: str, lane: str, operation_id: str
    ) -> str:
        clock = self.environment.clock
        deadline = clock.monotonic() + _DRIVE_SECONDS
        pause = _FIRST_PAUSE
        command = Drive(lane=lane, operation_id=operation_id)
        while not self.draining and clock.monotonic() < deadline:
            async with self.registry.owning(tenant_id, session_id) as found:
                if isinstance(found, LiveSession):
                    found.look()
                    return "claimed"
            place = await whereabouts(self.pool, tenant_id, session_id)
            if place is None:
                return "gone"
            owner = place.owner
            # An API host gives the session back in a moment: wait for that.
            if owner is not None and owner.role == "worker" and owner.host_id != self.host_id:
                answer = await self._peers.execute(owner, tenant_id, session_id, command)
                if not isinstance(answer, NotThere):
                    return "handed over"
            await clock.sleep(pause * (0.5 + self.environment.rng.random()))
            pause = min(pause * 1.7, _LONGEST_PAUSE)
        return "late"

    @property
    def free(self) -> int:
        """How many more operations this process may drive."""
        return self.settings.max_drives - self.registry.driving - self._arriving

    async def _wait_for_room(self) -> bool:
        try:
            async with asyncio.timeout(_ROOM_SECONDS):
                while self.free <= 0:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            return False
        return True

    # What live sessions tell

    def _services(self) -> Services:
        settings = self.settings
        return Services(
            clock=self.environment.clock,
            duty=Duty(
                drives=self.role == "worker",
                linger_ms=settings.linger_ms,
                hold_due_ms=settings.hold_due_ms,
            ),
            draining=lambda: self.draining,
            due_rows=self._due_rows,
            pass_begins=self._pass_begins,
            pass_excused=self._pass_excused,
            pass_ended=self._pass_ended,
            retired=self._retired,
            feed=lambda: Feed(
                settings.watch_items, settings.watch_bytes, self.metrics.watcher_dropped
            ),
            meter=self.metrics,
        )

    async def _due_rows(self, live: LiveSession) -> dict[str, int]:
        return await due_of_session(self.pool, live.tenant_id, live.session_id)

    async def _pass_begins(
        self, live: LiveSession, operation: OpenOperation, reason: str | None
    ) -> PassCount | None:
        return await begin_pass(
            self.pool, live.tenant_id, live.session_id, operation.operation_id, reason
        )

    async def _pass_excused(self, live: LiveSession, operation: OpenOperation) -> None:
        await excuse_pass(self.pool, live.tenant_id, live.session_id, operation.operation_id)

    def _pass_ended(self) -> None:
        self._room.set()
        self.dispatcher.room()

    def _retired(self, live: LiveSession, due: int | None) -> None:
        self.registry.forget(live)
        if self.role == "worker":
            self.indexer.poke((live.tenant_id, live.session_id))
        self._room.set()
        if due is None:
            if self.role == "api":
                self.hints.changed(live.session_id)
            return
        # Watchers hear of the worker that comes for what is due.
        if self.draining:
            self.hints.due(due)
        else:
            self.dispatcher.expect(due)

    def _show_gauges(self) -> None:
        show = self.metrics.show
        show("drives", "Passes under way in this process.", lambda: self.registry.driving)
        capacity = self.settings.max_drives if self.role == "worker" else 0
        show("drive_capacity", "Passes that may be under way here.", lambda: capacity)
        show("sessions_open", "Sessions owned by this process.", lambda: len(self.registry.all()))
        show("ready", "Whether this process takes work.", lambda: float(self.ready))

    def _due_hint(self, instant: int) -> None:
        if self.role == "worker" and not self.draining:
            self.dispatcher.expect(instant)

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        task.add_done_callback(_report)
        self._tasks.append(task)


def _report(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a part of the host ended", exc_info=task.exception())
