"""The mutation line: whole jobs in arrival order, one at a time, independent of their callers (§4.3)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")


class MutationLine:
    """A FIFO of jobs. A job starts after the earlier ones ended, and runs to its end.

    Jobs run in a task of the line's own: cancelling a caller ends its observation, not the job.
    """

    __slots__ = ("_jobs", "_runner")

    def __init__(self) -> None:
        # Any: results of different jobs share the queue; each future is typed where it is made.
        self._jobs: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._runner: asyncio.Task[None] | None = None

    def submit(self, job: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Queue a job now; the order of calls is the order of execution."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((job, future))
        if self._runner is None:
            self._runner = asyncio.get_running_loop().create_task(self._run())
        return future

    async def run(self, job: Callable[[], Awaitable[T]]) -> T:
        """Queue a job and wait for its result."""
        return await asyncio.shield(self.submit(job))

    @property
    def idle(self) -> bool:
        """Whether no job is running or waiting."""
        return self._runner is None

    async def settled(self) -> None:
        """Return when every job queued so far has ended."""
        while self._runner is not None:
            await asyncio.wait([self._runner])

    async def _run(self) -> None:
        while self._jobs:
            job, future = self._jobs.popleft()
            try:
                result = await job()
            except asyncio.CancelledError:
                # Only the event loop's own shutdown cancels the line.
                future.cancel()
                self._drop_rest()
                raise
            except BaseException as error:  # the job's failure belongs to its caller
                if not future.cancelled():
                    future.set_exception(error)
                if not isinstance(error, Exception):
                    self._drop_rest()
                    raise
            else:
                if not future.cancelled():
                    future.set_result(result)
        self._runner = None

    def _drop_rest(self) -> None:
        while self._jobs:
            self._jobs.popleft()[1].cancel()
        self._runner = None


def observe(future: asyncio.Future[Any]) -> None:
    """Mark a future's exception as seen, for a result that somebody else reports."""

    def seen(done: asyncio.Future[Any]) -> None:
        if not done.cancelled():
            done.exception()

    future.add_done_callback(seen)
