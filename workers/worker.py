"""The worker process: starts a host and its queue worker, and drains them when it is told to stop (design §6)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable

from storage_pg import schema
from workers.host import SessionHost
from workers.jobs import JobRunner
from workers.memory import settle
from workers.settings import Settings

logger = logging.getLogger(__name__)


# What a tool leaves behind that neither cancellation nor the loop's end stops is waited for so long.
STRAGGLER_SECONDS = 3.0


async def run_worker(
    settings: Settings,
    *,
    ready: Callable[[SessionHost], None] | None = None,
    left: Callable[[], None] | None = None,
) -> None:
    """Work until SIGTERM or SIGINT, or until an operator tells this host to leave, then drain for at
    most `drain_seconds`; a second signal hastens.

    `ready` hears of the host once it takes work, `left` when it has given everything back. Raises
    what makes starting impossible, `SchemaBehind` and `SchemaAhead` among it.
    """
    await asyncio.to_thread(schema.check, settings.direct_url)
    stop, hasten = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def told() -> None:
        if stop.is_set():
            hasten.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told)
    host = SessionHost(settings, "worker")
    runner = JobRunner(host)
    try:
        await host.start()
        await runner.start()
        settle()
        logger.info("host %s takes work", host.host_id)
        if ready is not None:
            ready(host)
        await _either(stop, host.leaving)
        logger.info("host %s drains", host.host_id)
        await _drain(host, runner, settings.drain_seconds, hasten)
    finally:
        await runner.stop()
        await host.close()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    if left is not None:
        left()


def end_process_soon(status: int = 0) -> None:
    """End this process in a moment, whatever still runs in it. Everything is given back by now; a
    tool that swallows its cancellation, or blocks in a thread, would keep the process for ever."""

    def end() -> None:
        logging.shutdown()
        os._exit(status)

    timer = threading.Timer(STRAGGLER_SECONDS, end)
    timer.daemon = True
    timer.start()


async def _either(*events: asyncio.Event) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in waiting:
            one.cancel()


async def _drain(
    host: SessionHost, runner: JobRunner, seconds: float, hasten: asyncio.Event
) -> None:
    draining = asyncio.ensure_future(_leave(host, runner, seconds))
    hastened = asyncio.ensure_future(hasten.wait())
    await asyncio.wait([draining, hastened], return_when=asyncio.FIRST_COMPLETED)
    hastened.cancel()
    if not draining.done():
        # What still runs is stopped by the close that follows.
        draining.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await draining


async def _leave(host: SessionHost, runner: JobRunner, seconds: float) -> None:
    await asyncio.gather(runner.stop(), host.drain(seconds))
