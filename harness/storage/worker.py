"""One dedicated thread that runs a blocking library's calls in order, for one open session."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Worker:
    """A FIFO of blocking jobs on its own thread.

    A caller that is cancelled stops waiting; its job still runs. `idle` runs on the thread whenever
    no job came for `idle_seconds`.
    """

    def __init__(self, name: str, idle: Callable[[], None], idle_seconds: float) -> None:
        # Any: jobs of every result type share the queue; `run` pairs each with its own future.
        self._jobs: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._idle = idle
        self._idle_seconds = idle_seconds
        # A daemon, so that a session somebody forgot to close cannot keep the process from exiting.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Queue a job; its result arrives in the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put(_Job(call, loop, future))
        return future

    def stop(self) -> None:
        """End the thread after the jobs queued so far."""
        self._jobs.put(None)

    def _serve(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._idle_seconds)
            except queue.Empty:
                self._idle()
                continue
            if job is None:
                return
            job.run()
            # A finished job must not keep its result alive until the next one arrives.
            del job


class _Job(Generic[T]):
    """One call and where its result goes."""

    __slots__ = ("_call", "_future", "_loop")

    def __init__(
        self, call: Callable[[], T], loop: asyncio.AbstractEventLoop, future: asyncio.Future[T]
    ) -> None:
        self._call = call
        self._loop = loop
        self._future = future

    def run(self) -> None:
        """Run the call and hand over its result or its exception."""
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001  # whatever it is belongs to the caller, not to this thread
            self._deliver(_fail, error)
        else:
            self._deliver(_succeed, result)

    # Any: either a result or an exception, matched by the function that takes it.
    def _deliver(self, settle: Callable[[asyncio.Future[T], Any], None], outcome: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(settle, self._future, outcome)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more


def _succeed(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
