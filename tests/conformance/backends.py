"""How each embedded backend is created, reopened and crashed under the conformance suite."""

from __future__ import annotations

from pathlib import Path

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.memory import MemoryStorage
from harness.storage.protocol import Storage
from harness.testing.conformance import Capabilities


class MemoryBackend:
    """Maps that survive the storage object, in this process only."""

    name = "memory"
    capabilities = Capabilities(physical_reclaim=True)

    def __init__(self, folder: Path) -> None:
        self._current: MemoryStorage | None = None

    async def create(self) -> Storage:
        self._current = MemoryStorage(SystemClock())
        return self._current

    async def reopen(self) -> Storage:
        assert self._current is not None
        self._current = MemoryStorage(SystemClock(), self._current.state)
        return self._current

    async def crash(self) -> Storage:
        raise NotImplementedError("memory dies with its process")

    async def dispose(self) -> None:
        if self._current is not None:
            await self._current.close(BACKGROUND)
