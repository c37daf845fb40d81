"""Watching a session from any process: its owner's events while it has one, what is committed while not (§5.4, design §6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import assert_never

from harness.clock import Clock
from harness.context import BACKGROUND, Context
from harness.errors import HarnessClosed, HarnessFault, SessionNotFound
from storage_pg.open_operations import SessionOwner, whereabouts
from storage_pg.storage import Pool
from workers.committed import CommittedSessions
from workers.hints import Hints
from workers.live import LiveSession, Retired
from workers.peers import NotThere, Peers
from workers.registry import Registry
from workers.watching import EndItem, EventItem, SnapshotItem, StreamItem

_TROUBLE_SECONDS = 0.05


@dataclass(slots=True)
class _Shown:
    """How far the watcher has seen the session; None when that is not known."""

    position: int | None = None


class Follower:
    """Makes streams that follow a session's ownership. A watcher never owns."""

    def __init__(
        self,
        pool: Pool,
        registry: Registry,
        peers: Peers,
        committed: CommittedSessions,
        hints: Hints,
        clock: Clock,
        *,
        poll_seconds: float,
        draining: Callable[[], bool],
        host_id: Callable[[], str | None],
    ) -> None:
        self._pool = pool
        self._registry = registry
        self._peers = peers
        self._committed = committed
        self._hints = hints
        self._clock = clock
        self._poll_seconds = poll_seconds
        self._draining = draining
        self._host_id = host_id

    async def watch(
        self, tenant_id: str, session_id: str, lane: str | None, context: Context
    ) -> AsyncGenerator[StreamItem]:
        """A snapshot, then events; another snapshot whenever the events of an owner cannot be
        continued. An `EndItem` is last: draining, a slow reader, or a session that is gone.

        Raises `SessionNotFound` and `NoSuchLane` before the first item, and `StorageError` when the
        database is away.
        """
        shown = _Shown()
        begun = False
        with self._hints.about(session_id) as hinted:
            while not self._draining():
                hinted.clear()
                place = await whereabouts(self._pool, tenant_id, session_id)
                if place is None:
                    if not begun:
                        raise SessionNotFound(session_id)
                    yield EndItem("deleted")
                    return
                live = self._registry.get(tenant_id, session_id)
                if live is not None and live.drives:
                    source = self._from_live(live, lane, shown)
                elif place.owner is not None and self._elsewhere(place.owner):
                    source = self._from_owner(place.owner, tenant_id, session_id, lane, shown)
                elif place.next_seq != shown.position:
                    item = await self._committed.snapshot(tenant_id, session_id, place.agent, lane)
                    # It may show more than this; then one snapshot too many follows.
                    shown.position = place.next_seq
                    begun = True
                    yield item
                    continue
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._poll_seconds):
                            await hinted.wait()
                    continue
                async with aclosing(source) as items:
                    async for item in items:
                        begun = True
                        yield item
                        if isinstance(item, EndItem):
                            return
        yield EndItem("draining")

    def _elsewhere(self, owner: SessionOwner) -> bool:
        # An API host's short claim has nothing to show.
        return owner.role == "worker" and owner.host_id != self._host_id()

    async def _from_live(
        self, live: LiveSession, lane: str | None, shown: _Shown
    ) -> AsyncGenerator[StreamItem]:
        try:
            feed = await live.watch(lane, BACKGROUND)
        except (Retired, HarnessFault, HarnessClosed):
            await live.closed.wait()
            return
        try:
            async for item in feed:
                if not isinstance(item, EndItem):
                    yield item
                    continue
                if item.reason == "slow_reader":
                    yield item
                shown.position = item.position if item.reason == "released" else None
        finally:
            live.unwatch(feed)

    async def _from_owner(
        self,
        owner: SessionOwner,
        tenant_id: str,
        session_id: str,
        lane: str | None,
        shown: _Shown,
    ) -> AsyncGenerator[StreamItem]:
        async with aclosing(self._peers.watch(owner, tenant_id, session_id, lane)) as items:
            async for item in items:
                match item:
                    case SnapshotItem() | EventItem():
                        shown.position = None
                        yield item
                    case EndItem(reason="slow_reader"):
                        yield item
                        return
                    case EndItem(reason=reason, position=position):
                        shown.position = position if reason == "released" else None
                        return
                    case NotThere():
                        await self._clock.sleep(_TROUBLE_SECONDS)
                        return
                    case _:
                        assert_never(item)
