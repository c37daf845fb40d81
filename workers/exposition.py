"""What a scrape gets: this process's metrics, and the fleet's as the database shows it (design §13)."""

from __future__ import annotations

import asyncio
import hmac
import logging
from dataclasses import dataclass

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import SecretStr

from harness.clock import Clock
from harness.errors import StorageError
from storage_pg.fleet_state import FleetState, fleet_state
from storage_pg.storage import Pool
from workers.metrics import Metrics

logger = logging.getLogger(__name__)

CONTENT_TYPE = CONTENT_TYPE_LATEST

# However often a process is scraped, it asks the database no more often than this, and waits for it
# no longer than this: a scrape has to come back while the database is away.
_FRESH_SECONDS = 5.0
_PATIENCE_SECONDS = 2.0

# Tenants have few classes; who invents one for every tenant gets them added up.
_MOST_CLASSES = 20
_OTHER = "other"


class Exposition:
    """Answers scrapes. `token`, when there is one, is what a scrape of the public port presents."""

    def __init__(self, metrics: Metrics, pool: Pool, clock: Clock, token: SecretStr | None) -> None:
        self._metrics = metrics
        self._pool = pool
        self._clock = clock
        self._token = token
        self._asked_at: float | None = None
        self._asking = asyncio.Lock()
        self._open = metrics.gauge("open_operations", "Open operations of the fleet.", "state")
        self._depth = metrics.gauge(
            "queue_depth", "Operations of the fleet that wait for a drive.", "tenant_class"
        )
        self._oldest = metrics.gauge(
            "oldest_wait_seconds", "How long the one that waits longest for a drive has been due."
        )
        self._hosts = metrics.gauge("hosts", "Hosts of the fleet.", "role", "state")
        self._known = metrics.gauge(
            "fleet_known", "Whether the database told of the fleet at this scrape (0: it did not)."
        )

    @property
    def public(self) -> bool:
        """Whether the public port shows metrics at all."""
        return self._token is not None

    def admits(self, presented: str) -> bool:
        """Whether this is the token for the public port."""
        if self._token is None:
            return False
        wanted = self._token.get_secret_value().encode()
        return hmac.compare_digest(presented.encode("utf-8", "surrogatepass"), wanted)

    async def render(self) -> bytes:
        """The metrics in Prometheus's text format."""
        await self._refresh()
        return generate_latest(self._metrics.registry)

    async def _refresh(self) -> None:
        async with self._asking:
            now = self._clock.monotonic()
            if self._asked_at is not None and now - self._asked_at < _FRESH_SECONDS:
                return
            try:
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    state = await fleet_state(self._pool, self._clock.now_ms())
            except (TimeoutError, StorageError) as error:
                logger.warning("a scrape does not know the fleet: %s", type(error).__name__)
                self._known.set(0)
                return
            self._asked_at = now
            self._known.set(1)
            self._show(state)

    def _show(self, state: FleetState) -> None:
        totals = _totals(state)
        for name, number in totals.by_state.items():
            self._open.labels(name).set(number)
        self._depth.clear()
        for name, number in totals.waiting.items():
            self._depth.labels(name).set(number)
        oldest = state.oldest_waiting
        late = 0 if oldest is None else max(self._clock.now_ms() - oldest, 0)
        self._oldest.set(late / 1000)
        for role in ("worker", "api"):
            for draining in (False, True):
                label = "draining" if draining else "live"
                self._hosts.labels(role, label).set(state.hosts.get((role, draining), 0))


@dataclass(frozen=True, slots=True)
class _Totals:
    by_state: dict[str, int]
    waiting: dict[str, int]


def _totals(state: FleetState) -> _Totals:
    by_state = {"waiting": 0, "driven": 0, "scheduled": 0}
    waiting = {"default": 0}
    for part in state.operations:
        by_state[part.state] += part.number
        if part.state != "waiting":
            continue
        known = part.tenant_class in waiting or len(waiting) < _MOST_CLASSES
        name = part.tenant_class if known else _OTHER
        waiting[name] = waiting.get(name, 0) + part.number
    return _Totals(by_state, waiting)
