"""Parks chosen commits until a test lets them go: both orders of a race, without timing (§9.3 C)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeAlias

from harness.context import Context
from harness.storage.protocol import CommitResult, Storage
from harness.storage.writes import Write
from harness.testing.decorated import StorageDecorator
from harness.testing.instrumented import describe_all

Wanted: TypeAlias = Callable[[tuple[str, ...]], bool]


class ParkedCommit:
    """A commit that stands before the storage (or, `durable`, behind it) until it is released."""

    def __init__(self, wanted: Wanted, *, durable: bool) -> None:
        self.wanted = wanted
        self.durable = durable
        self.described: tuple[str, ...] = ()
        self._reached = asyncio.Event()
        self._released = asyncio.Event()
        self._failure: BaseException | None = None

    @property
    def is_reached(self) -> bool:
        """Whether a commit stands here."""
        return self._reached.is_set()

    async def reached(self) -> None:
        """Return when a commit stands here."""
        await self._reached.wait()

    def release(self) -> None:
        """Let it go on."""
        self._released.set()

    def fail(self, failure: BaseException) -> None:
        """Let it fail with this error."""
        self._failure = failure
        self._released.set()

    async def stand(self, described: tuple[str, ...]) -> None:
        """The commit's side: announce the arrival, wait for the release."""
        self.described = described
        self._reached.set()
        await self._released.wait()
        if self._failure is not None:
            raise self._failure


class GatedStorage(StorageDecorator):
    """Commits go through unless one was asked to park."""

    def __init__(self, inner: Storage) -> None:
        super().__init__(inner)
        self._parked: list[ParkedCommit] = []
        self._made: list[ParkedCommit] = []

    def park(self, wanted: str | Wanted, *, durable: bool = False) -> ParkedCommit:
        """Park the next commit with a write described so (a part of it suffices).

        Before it reaches the storage, or with `durable` after it was committed and before its
        caller learns of it.
        """
        if isinstance(wanted, str):
            part = wanted
            found: Wanted = lambda described: any(part in line for line in described)  # noqa: E731
        else:
            found = wanted
        parked = ParkedCommit(found, durable=durable)
        self._parked.append(parked)
        self._made.append(parked)
        return parked

    def release_all(self) -> None:
        """Let everything go on that stands or would stand, so that a failed test can end."""
        self._parked.clear()
        for parked in self._made:
            parked.release()

    def _claimed(self, described: tuple[str, ...], *, durable: bool) -> ParkedCommit | None:
        for parked in self._parked:
            if parked.durable == durable and parked.wanted(described):
                self._parked.remove(parked)
                return parked
        return None

    async def commit(self, writes: Sequence[Write], context: Context) -> CommitResult:
        """Commit, standing still where a test asked for it."""
        described = describe_all(writes)
        before = self._claimed(described, durable=False)
        if before is not None:
            await before.stand(described)
        result = await self.inner.commit(writes, context)
        after = self._claimed(described, durable=True)
        if after is not None:
            await after.stand(described)
        return result
