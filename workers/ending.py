"""Ends tasks that would go on for ever, also when a cancellation gets lost on the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

_AGAIN_SECONDS = 3.0


async def end_tasks(tasks: Iterable[asyncio.Task[Any]], again: float = _AGAIN_SECONDS) -> None:
    """Cancel the tasks and return when they have ended; what they raise is theirs.

    A cancellation may be lost in a library: on Python 3.11 `asyncio.wait_for` drops one that comes just as
    what it waits for is done, and a task that loops goes on then. So it is repeated every `again`
    seconds.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        done, waiting = await asyncio.wait(waiting, timeout=again)
        for task in done:
            if not task.cancelled():
                task.exception()
