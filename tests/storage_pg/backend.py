"""Postgres under the conformance suite."""

from __future__ import annotations

from harness.context import BACKGROUND
from harness.storage.protocol import Storage
from harness.testing.conformance import Capabilities
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit


class PostgresBackend:
    """One session per storage, on a database shared with other tests."""

    name = "postgres"
    capabilities = Capabilities(durable=True, multi_process_lease=True)

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._session = ""
        self._open: list[PostgresStorage] = []

    async def create(self) -> Storage:
        self._session = (await self._kit.sessions.create(self._kit.tenant)).id
        return await self.reopen()

    async def reopen(self) -> Storage:
        owned = await self._kit.sessions.open(self._kit.tenant, self._session)
        self._open.append(owned.storage)
        return owned.storage

    async def crash(self) -> Storage:
        # The process is gone without a word: its lease falls, and a new one claims.
        await self._kit.lose_lease()
        return await self.reopen()

    async def dispose(self) -> None:
        for storage in self._open:
            await storage.close(BACKGROUND)
