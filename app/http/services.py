"""What the routes of one process share, opened when it starts and closed when it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.http.auth import Authenticator
from harness.environment import Environment
from harness.telemetry_otel import Tracing
from storage_pg import schema
from storage_pg.catalog import Catalog, open_engine
from storage_pg.copies import PostgresCopies
from storage_pg.sessions import PostgresSessions
from storage_pg.storage import Pool, fetch_from
from workers.host import SessionHost
from workers.settings import Settings

# How long commands that are under way at the end may take; each is short.
_LAST_COMMANDS_SECONDS = 5.0
_COPIES = 4


@dataclass(slots=True)
class Services:
    """The services of one process. `draining` is set when it is told to stop."""

    settings: Settings
    environment: Environment
    host: SessionHost
    catalog: Catalog
    keys: Authenticator
    draining: asyncio.Event = field(default_factory=asyncio.Event)
    # Whole sessions that may be copied at a time: each takes a thread and connections of its own.
    copying: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_COPIES))

    @property
    def pool(self) -> Pool:
        """Connections for reads."""
        return self.host.pool

    @property
    def sessions(self) -> PostgresSessions:
        """Sessions of any tenant."""
        return self.host.sessions

    def copies(self, tenant_id: str) -> PostgresCopies:
        """Whole sessions of a tenant, going in and out."""
        settings = self.settings
        return PostgresCopies(
            settings.database_url, tenant_id, self.environment, self.sessions, polls=settings.polls
        )

    async def ping(self) -> None:
        """Ask the database for nothing; raises `StorageError` when it does not answer."""
        await fetch_from(self.pool, "ping", ())


@asynccontextmanager
async def open_services(
    settings: Settings, tracing: Tracing | None = None
) -> AsyncGenerator[Services]:
    """Services on a host of their own. Raises what the database says when that is impossible:
    `SchemaBehind` before it was migrated, `PoolerOnDirectUrl` among it."""
    await asyncio.to_thread(schema.check, settings.direct_url)
    environment = Environment.system()
    host = SessionHost(settings, "api", environment, tracing=tracing)
    engine = open_engine(settings.database_url, size=settings.pool_size)
    try:
        await host.start()
        catalog = Catalog(engine, environment.clock, environment.ids)
        keys = Authenticator(catalog, environment.clock)
        services = Services(settings, environment, host, catalog, keys)
        yield services
        services.draining.set()
        await host.drain(_LAST_COMMANDS_SECONDS)
    finally:
        await host.close()
        await engine.dispose()
