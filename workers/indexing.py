"""Keeps the search index up to date: a sweep over all tenants, and pokes for what was just worked on (§2.8)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from harness.clock import Clock
from harness.context import BACKGROUND, AbortController
from harness.search.notify import PokedPulls
from harness.search.sync import SyncReport, sync_session
from storage_pg.search import PostgresSearch
from storage_pg.search_source import PostgresSource, sweep
from storage_pg.storage import Pool

# One pass of the sweep ends after so many sessions or seconds, whichever comes first; the next goes
# on where the index says that it stands. Passes begin once a minute.
_SESSIONS = 2_000
_SECONDS = 45.0
# A poke is a convenience and must not cost what it is beside: ten pulls a second at the most, and
# what does not fit into the line is left to the sweep.
_DELAY_SECONDS = 0.5
_PAUSE_SECONDS = 0.1
_WAITING = 200


class Indexer(PokedPulls[tuple[str, str]]):
    """Indexes sessions, by tenant and id, soon after this process worked on them."""

    def __init__(self, pool: Pool, clock: Clock, metadata_fields: Sequence[str]) -> None:
        async def pull(who: tuple[str, str]) -> None:
            tenant_id, session_id = who
            source = PostgresSource(pool, tenant_id)
            target = PostgresSearch(pool, tenant_id, metadata_fields)
            await sync_session(source, target, session_id, BACKGROUND)

        super().__init__(pull, clock, delay=_DELAY_SECONDS, pause=_PAUSE_SECONDS, most=_WAITING)


async def sweep_index(
    pool: Pool, metadata_fields: Sequence[str], *, at_most: int = _SESSIONS
) -> SyncReport:
    """One bounded pass over the sessions of all tenants whose index is behind. Several processes may
    sweep at once."""
    stop = AbortController()
    timer = asyncio.get_running_loop().call_later(_SECONDS, stop.abort)
    try:
        context = BACKGROUND.with_abort_signal(stop.signal)
        return await sweep(pool, context, metadata_fields, at_most=at_most)
    finally:
        timer.cancel()
