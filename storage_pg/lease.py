"""A host's leases: one dedicated connection whose advisory locks say what this process owns (design §6).

The connection does nothing else: locks make it slow for ordinary work, and its end is this
incarnation's end. After a reconnect the host is a new one that owns nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.rows import TupleRow

from harness.codec import decode
from harness.errors import LeaseLost, StorageError
from harness.ids import IdGenerator
from harness.storage.metadata import SessionMetadata
from harness.usage import SessionStats, Usage
from storage_pg.backoff import Backoff
from storage_pg.claimed import Claim, ClaimedSession, HeldElsewhere, NoSuchSession
from storage_pg.heartbeat import Heartbeat
from storage_pg.lease_connection import LeaseConnection
from storage_pg.locks import host_lock, session_lock
from storage_pg.pooler import refuse_pooler

_RECONNECT_FIRST = 0.1
_RECONNECT_LONGEST = 5.0
_MAX_BATCH = 256
_RELEASE_TRIES = 3


class HostDown(StorageError):
    """This host has no lease connection at the moment: it can own nothing. Try again soon."""


class HostFull(StorageError):
    """This host owns as many sessions as it may; another host should take this one."""


@dataclass(frozen=True, slots=True)
class HostIdentity:
    """What a host says of itself. `role` is `worker` or `api`; `url` is where others reach it;
    `capacity` how many operations a worker drives at once."""

    name: str
    role: str
    url: str | None = None
    capacity: int = 64


@dataclass(slots=True)
class _Held:
    tenant_id: str
    lock_key: int
    fence: int
    lost: Callable[[StorageError], None] | None


@dataclass(frozen=True, slots=True)
class _Wish:
    tenant_id: str
    session_id: str
    lock_key: int
    answer: asyncio.Future[Claim]


@dataclass(frozen=True, slots=True)
class _Return:
    tenant_id: str
    session_id: str
    lock_key: int
    answer: asyncio.Future[Any]  # Any: None when it is done; already over for an unusable claim


class HostLease:
    """Claims and releases sessions for this process. A lease connection that has not answered for
    `answer_seconds` is ended.

    `on_lost` is called once per incarnation that ends unexpectedly, after every held session was
    told; `on_started` with the new id when an incarnation begins, the first one included; `on_leave`
    when an operator told this host to leave, perhaps several times.
    """

    def __init__(
        self,
        direct_dsn: str,
        identity: HostIdentity,
        ids: IdGenerator,
        *,
        capacity: int = 1_000,
        heartbeat_seconds: float = 3.0,
        answer_seconds: float = 15.0,
        rng: random.Random | None = None,
        on_lost: Callable[[str], None] | None = None,
        on_started: Callable[[str], None] | None = None,
        on_leave: Callable[[], None] | None = None,
    ) -> None:
        self._dsn = direct_dsn
        self._identity = identity
        self._ids = ids
        self._capacity = capacity
        self._heartbeat_seconds = heartbeat_seconds
        self._answer_seconds = answer_seconds
        self._rng = rng or random.SystemRandom()
        self._on_lost = on_lost
        self._on_started = on_started
        self._on_leave = on_leave
        self._connection: LeaseConnection | None = None
        self._heartbeat: Heartbeat | None = None
        self._host_id: str | None = None
        self._held: dict[str, _Held] = {}
        self._wishes: list[_Wish] = []
        self._returns: list[_Return] = []
        self._pump_task: asyncio.Task[None] | None = None
        self._reconnect_task: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._closed = False

    # Lifecycle

    async def start(self) -> str:
        """Connect and become a live host; returns its id. Raises `PoolerOnDirectUrl`."""
        await refuse_pooler(self._dsn)
        return await self._begin()

    async def close(self) -> None:
        """Give every session back and leave. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._reconnect_task is not None:
            self._reconnect_task.cancel()
            await asyncio.wait([self._reconnect_task])
        for session_id in list(self._held):
            await self.release(session_id)
        if self._pump_task is not None:
            await asyncio.wait([self._pump_task])
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.stop()
            await asyncio.to_thread(heartbeat.join)
        connection, self._connection = self._connection, None
        host_id, self._host_id = self._host_id, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                await connection.execute("remove_host", (host_id,))
            await connection.close()

    @property
    def host_id(self) -> str | None:
        """This incarnation's id; None while there is no lease connection."""
        return self._host_id

    @property
    def held(self) -> frozenset[str]:
        """Ids of the sessions that this host owns."""
        return frozenset(self._held)

    async def wait_started(self) -> None:
        """Return when there is a lease connection."""
        await self._started.wait()

    async def set_draining(self, draining: bool) -> None:
        """Tell the others that this host is leaving."""
        try:
            await self._alive().execute("set_draining", (draining, self._host_id))
        except psycopg.Error as error:
            raise HostDown(f"the lease connection failed: {error}") from error

    # Sessions

    async def claim(self, tenant_id: str, session_id: str) -> Claim:
        """Try to own a session. Claims that come together go in one statement.

        Raises `HostDown` and `HostFull`. After a `ClaimedSession`, call `watch` to hear of loss.
        """
        self._alive()
        if not _is_canonical(session_id):
            # The answer names the session as the database spells it; what is no id has no lock.
            return NoSuchSession(session_id)
        if session_id in self._held or any(w.session_id == session_id for w in self._wishes):
            return HeldElsewhere(session_id, self._host_id)
        if len(self._held) + len(self._wishes) >= self._capacity:
            raise HostFull(f"this host owns {len(self._held)} sessions already")
        key = session_lock(tenant_id, session_id)
        answer: asyncio.Future[Claim] = asyncio.get_running_loop().create_future()
        self._wishes.append(_Wish(tenant_id, session_id, key, answer))
        self._wake()
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            # Nobody will use the claim: give it back as soon as it is there.
            answer.add_done_callback(lambda done: self._give_back(done, session_id))
            raise

    def watch(self, session_id: str, fence: int, lost: Callable[[StorageError], None]) -> None:
        """Have `lost` called at once when this host loses the claim without releasing it."""
        held = self._held.get(session_id)
        if held is None or held.fence != fence:
            lost(LeaseLost())
            return
        held.lost = lost

    async def release(self, session_id: str, fence: int | None = None) -> None:
        """Give a session back; nothing happens when it is not held, or not under this fence."""
        held = self._held.get(session_id)
        if held is None or (fence is not None and held.fence != fence):
            return
        del self._held[session_id]
        if self._connection is None:
            return
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._returns.append(_Return(held.tenant_id, session_id, held.lock_key, answer))
        self._wake()
        await asyncio.shield(answer)

    # One incarnation after the other

    async def _begin(self) -> str:
        host_id = self._ids.next()
        key = host_lock(host_id)
        who = self._identity
        connection = await LeaseConnection.open(
            self._dsn, lambda reason: self._lost(host_id, reason), self._answer_seconds
        )
        try:
            await connection.execute("lease_settings")
            # The lock before the row: a row whose lock is free is a dead host's.
            await connection.execute("take_identity", (key,))
            await connection.execute(
                "register_host",
                (host_id, who.name, who.role, who.url, os.getpid(), key, who.capacity),
            )
        except BaseException:
            await connection.close()
            raise
        loop = asyncio.get_running_loop()

        def gone() -> None:
            loop.call_soon_threadsafe(connection.cut, "declared dead by another host")

        def leave() -> None:
            loop.call_soon_threadsafe(self._told_to_leave)

        self._connection = connection
        self._host_id = host_id
        self._heartbeat = Heartbeat(self._dsn, host_id, self._heartbeat_seconds, gone, leave)
        self._heartbeat.start()
        self._started.set()
        if self._on_started is not None:
            self._on_started(host_id)
        return host_id

    def _told_to_leave(self) -> None:
        if self._on_leave is not None and not self._closed:
            self._on_leave()

    def _alive(self) -> LeaseConnection:
        if self._connection is None:
            raise HostDown("no lease connection")
        return self._connection

    def _lost(self, host_id: str, reason: str) -> None:
        """This incarnation is over: everything it held is lost, now."""
        if self._host_id != host_id:
            return
        self._connection = None
        self._host_id = None
        self._started.clear()
        heartbeat, self._heartbeat = self._heartbeat, None
        if heartbeat is not None:
            heartbeat.stop()
        held, self._held = self._held, {}
        for lease in held.values():
            if lease.lost is not None:
                lease.lost(LeaseLost(f"lease connection lost: {reason}"))
        self._refuse_waiting(reason)
        if self._on_lost is not None:
            self._on_lost(reason)
        if not self._closed:
            self._reconnect_task = asyncio.get_running_loop().create_task(self._reconnect())

    def _refuse_waiting(self, reason: str) -> None:
        wishes, self._wishes = self._wishes, []
        for wish in wishes:
            _fail(wish.answer, HostDown(reason))
        returns, self._returns = self._returns, []
        for back in returns:
            if not back.answer.done():
                back.answer.set_result(None)  # the lock went with the connection

    async def _reconnect(self) -> None:
        backoff = Backoff(_RECONNECT_FIRST, _RECONNECT_LONGEST, self._rng)
        while not self._closed:
            try:
                await self._begin()
                return
            except (psycopg.Error, OSError):
                await asyncio.sleep(backoff.pause())

    # The pump: everything that runs on the connection, one batch at a time

    def _wake(self) -> None:
        if self._pump_task is None:
            self._pump_task = asyncio.get_running_loop().create_task(self._pump())

    async def _pump(self) -> None:
        try:
            while (connection := self._connection) is not None:
                if self._returns:
                    await self._release_batch(connection)
                elif self._wishes:
                    await self._claim_batch(connection)
                else:
                    return
        finally:
            self._pump_task = None

    async def _claim_batch(self, connection: LeaseConnection) -> None:
        wishes = sorted(self._wishes[:_MAX_BATCH], key=lambda wish: wish.session_id)
        # They stay on the list until they are held, so that a second claim sees them.
        try:
            cursor = await connection.execute(
                "claim",
                (
                    self._host_id,
                    [wish.tenant_id for wish in wishes],
                    [wish.session_id for wish in wishes],
                    [wish.lock_key for wish in wishes],
                ),
            )
            rows = {row[0]: row for row in await cursor.fetchall()}
        except psycopg.Error as error:
            self._wishes = [wish for wish in self._wishes if wish not in wishes]
            for wish in wishes:
                _fail(wish.answer, HostDown(f"claim failed: {error}"))
            await self._unlock([wish.lock_key for wish in wishes])
            return
        self._wishes = [wish for wish in self._wishes if wish not in wishes]
        if self._connection is not connection:
            # It ended while the answer was on its way: what it claimed went with its locks.
            for wish in wishes:
                _fail(wish.answer, HostDown("the lease connection ended during the claim"))
            return
        for wish in wishes:
            try:
                claim = _claim_of(wish, rows[wish.session_id])
            except StorageError as error:
                # Claimed all the same, and nobody will use it.
                self._returns.append(
                    _Return(wish.tenant_id, wish.session_id, wish.lock_key, wish.answer)
                )
                _fail(wish.answer, error)
                continue
            if isinstance(claim, ClaimedSession):
                self._held[wish.session_id] = _Held(
                    wish.tenant_id, wish.lock_key, claim.fence, None
                )
            if not wish.answer.done():
                wish.answer.set_result(claim)

    async def _release_batch(self, connection: LeaseConnection) -> None:
        returns, self._returns = self._returns, []
        returns.sort(key=lambda back: back.session_id)
        arguments = (
            self._host_id,
            [back.tenant_id for back in returns],
            [back.session_id for back in returns],
            [back.lock_key for back in returns],
        )
        reason = ""
        try:
            for _ in range(_RELEASE_TRIES):
                try:
                    await connection.execute("release", arguments)
                    return
                except psycopg.Error as error:
                    reason = f"cannot give sessions back: {error}"
                    if self._connection is not connection:
                        return  # the locks went with it; the others clear its name away
            # The table names this host as owner of what it no longer holds, and nobody would look
            # after that as long as the host lives: end this incarnation.
            connection.cut(reason)
        finally:
            for back in returns:
                if not back.answer.done():
                    back.answer.set_result(None)

    async def _unlock(self, keys: list[int]) -> None:
        """After a statement that failed part way, free what it may have locked."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                await self._connection.execute("unlock", (keys,))

    def _give_back(self, done: asyncio.Future[Claim], session_id: str) -> None:
        if done.cancelled() or done.exception() is not None:
            return
        if isinstance(done.result(), ClaimedSession):
            task = asyncio.get_running_loop().create_task(self.release(session_id))
            task.add_done_callback(_ignore)


def _is_canonical(session_id: str) -> bool:
    try:
        return str(uuid.UUID(session_id)) == session_id
    except ValueError:
        return False


def _ignore(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _fail(answer: asyncio.Future[Claim], error: StorageError) -> None:
    if not answer.done():
        answer.set_exception(error)


def _claim_of(wish: _Wish, row: TupleRow) -> Claim:
    verdict: str = row[1]
    if verdict == "missing":
        return NoSuchSession(wish.session_id)
    if verdict == "held":
        return HeldElsewhere(wish.session_id, row[2])
    (
        *_,
        fence,
        created_at,
        agent,
        name,
        metadata,
        cwd,
        parent,
        legacy_parent,
        version,
        generation,
        next_seq,
        messages,
        usage,
        namespaces,
        keys,
        seqs,
        contents,
    ) = row
    return ClaimedSession(
        id=wish.session_id,
        tenant_id=wish.tenant_id,
        fence=fence,
        lock_key=wish.lock_key,
        next_seq=next_seq,
        stats=SessionStats(message_count=messages, usage=decode(usage, Usage)),
        agent=agent,
        name=name,
        metadata=SessionMetadata(
            id=wish.session_id,
            created_at=created_at,
            storage_version=version,
            cwd=cwd,
            parent_session_id=parent,
            legacy_parent_session_path=legacy_parent,
            store_generation=generation,
            metadata=metadata or None,
        ),
        control=tuple(zip(namespaces or (), keys or (), seqs or (), contents or (), strict=True)),
    )
