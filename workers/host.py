"""A process that can own sessions: a worker, or the API for the length of one command (design §6)."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import AsyncGenerator, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeAlias

from harness.context import Context
from harness.environment import Environment
from harness.telemetry_otel import Tracing
from storage_pg.connect import open_pool
from storage_pg.hosts import ready_workers
from storage_pg.lease import HostDown, HostIdentity, HostLease
from storage_pg.open_operations import DueOperation, SessionOwner, due_of_session
from storage_pg.passes import PassCount, Suspected, TenantFull, begin_pass, end_pass
from storage_pg.sessions import PostgresSessions
from storage_pg.storage import OpenOperation
from storage_pg.writer import SharedWriter
from workers.agents import Agents
from workers.commands import Accept, Command, Reply
from workers.committed import CommittedSessions
from workers.deaths import DeathWatch
from workers.dispatcher import Dispatcher
from workers.drive_jobs import DriveJobs
from workers.ending import end_tasks
from workers.exposition import Exposition
from workers.following import Follower
from workers.hints import Hints
from workers.indexing import Indexer
from workers.internal_auth import ClusterSecret
from workers.internal_http import InternalServer
from workers.live import LiveSession, Services
from workers.metrics import Metrics
from workers.passes import Duty, PassServices, Tenure
from workers.peers import Peers
from workers.placement import Placement
from workers.registry import Registry
from workers.routing import Router
from workers.settings import Settings
from workers.slots import Slots, TenantLines
from workers.suspects import Suspects
from workers.taking import Taking
from workers.tracing import pass_span
from workers.unopened import Unopened
from workers.watching import Feed, StreamItem

logger = logging.getLogger(__name__)

Role: TypeAlias = Literal["worker", "api"]

# A worker that has not said that it lives for so many heartbeats is given nothing new.
_MISSED_HEARTBEATS = 2.0


class SessionHost:
    """Owns sessions, runs commands, shows sessions to watchers. A `worker` drives what it owns, an
    `api` host never drives."""

    def __init__(
        self,
        settings: Settings,
        role: Role,
        environment: Environment | None = None,
        *,
        tracing: Tracing | None = None,
    ) -> None:
        self.settings = settings
        self.role: Role = role
        self.environment = environment or Environment.system()
        self.tracing = tracing or Tracing()
        clock, rng = self.environment.clock, self.environment.rng
        self.metrics = Metrics()
        self.pool = open_pool(settings.database_url, size=settings.pool_size)
        self.writer = SharedWriter(settings.database_url, rng)
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
            tracing=self.tracing,
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
            rng=rng,
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
            here=lambda: self.slots.free if self.takes_work and not self.draining else 0,
            take=self._take,
            meter=self.metrics,
        )
        self.slots = Slots(settings.max_drives)
        self._tenants = TenantLines()
        self._suspects = Suspects(clock, int(settings.alone_seconds * 1000))
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
            # A worker has what comes to it; it is asked, and asks nobody.
            placement=Placement(self._ready_workers, clock, rng) if role == "api" else None,
            meter=self.metrics,
        )
        self._taking = Taking(
            self.registry,
            self.slots,
            clock,
            takes_work=lambda: self.takes_work and not self.draining,
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
        unopened = Unopened(self.pool, committed, clock, self.metrics)
        self.deaths = DeathWatch(
            self.pool,
            clock,
            rng,
            interval=settings.death_check_ms / 1000,
            silent_seconds=settings.silent_seconds,
            hopeless=unopened.end_hopeless,
            died=self.dispatcher.poke,
            meter=self.metrics,
        )
        self._drives = DriveJobs(
            self.pool,
            self.registry,
            self._peers,
            self.slots,
            unopened,
            clock,
            rng,
            draining=lambda: self.draining,
            host_id=lambda: self.lease.host_id,
        )
        self.draining = False
        # Set while this process takes what waits for a drive: from the queue, and by itself.
        self.takes_work = False
        self._tasks: list[asyncio.Task[Any]] = []
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
        await end_tasks(self._tasks)
        await self._drives.close()
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

    async def take(
        self, tenant_id: str, session_id: str, command: Accept, context: Context, *, until: int
    ) -> Reply:
        """Accept an operation here and drive it (see `Taking.take`)."""
        return await self._taking.take(tenant_id, session_id, command, context, until=until)

    async def _ready_workers(self) -> list[SessionOwner]:
        return await ready_workers(self.pool, _MISSED_HEARTBEATS * self.settings.heartbeat_seconds)

    def _take(self, operation: DueOperation) -> None:
        self._drives.take(operation)

    async def drive(self, tenant_id: str, session_id: str, lane: str, operation_id: str) -> str:
        """See to it that an operation is driven (see `DriveJobs.drive`)."""
        return await self._drives.drive(tenant_id, session_id, lane, operation_id)

    # What live sessions tell

    def _services(self) -> Services:
        settings = self.settings
        return Services(
            passes=PassServices(
                clock=self.environment.clock,
                duty=Duty(
                    drives=self.role == "worker",
                    linger_ms=settings.linger_ms,
                    hold_due_ms=settings.hold_due_ms,
                    abort_ms=int(settings.abort_seconds * 1000),
                    close_ms=int(settings.close_seconds * 1000),
                ),
                slots=self.slots,
                tenants=self._tenants,
                suspects=self._suspects,
                draining=lambda: self.draining,
                due_rows=self._due_rows,
                begins=self._pass_begins,
                ends=self._pass_ends,
                over=self._pass_over,
                traced=self._traced,
                meter=self.metrics,
            ),
            retired=self._retired,
            feed=lambda: Feed(
                settings.watch_items, settings.watch_bytes, self.metrics.watcher_dropped
            ),
        )

    async def _due_rows(self, tenure: Tenure) -> dict[str, int]:
        return await due_of_session(self.pool, tenure.tenant_id, tenure.session_id)

    async def _pass_begins(
        self, tenure: Tenure, operation: OpenOperation, reason: str | None, alone: bool
    ) -> PassCount | TenantFull | Suspected | None:
        return await begin_pass(
            self.pool,
            tenure.tenant_id,
            tenure.session_id,
            operation.operation_id,
            host_id=tenure.host_id,
            tenant_limit=self.settings.tenant_drives,
            alone=alone,
            reason=reason,
        )

    async def _pass_ends(
        self, tenure: Tenure, operation: OpenOperation, excused: bool, reason: str | None
    ) -> None:
        await end_pass(
            self.pool,
            tenure.tenant_id,
            tenure.session_id,
            operation.operation_id,
            host_id=tenure.host_id,
            excused=excused,
            reason=reason,
        )

    def _pass_over(self, tenure: Tenure) -> None:
        self._tenants.ended(tenure.tenant_id)
        self.dispatcher.room()
        self.hints.passed(tenure.session_id)

    def _traced(self, tenure: Tenure, operation: OpenOperation) -> AbstractContextManager[Context]:
        return pass_span(
            self.tracing,
            operation.traceparent,
            tenant_id=tenure.tenant_id,
            session_id=tenure.session_id,
            lane=operation.lane,
            operation_id=operation.operation_id,
            host_id=self.host_id,
        )

    def _retired(self, live: LiveSession, due: int | None) -> None:
        self.registry.forget(live)
        if self.role == "worker":
            self.indexer.poke((live.tenant_id, live.session_id))
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
        show(
            "suspects_waiting",
            "Operations that hosts died under and that wait for their turn here.",
            lambda: self._suspects.waiting,
        )
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
