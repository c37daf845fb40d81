"""Waiting for work that must be seen to its end."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


async def finish(future: asyncio.Future[T]) -> T:
    """The future's result, even if the waiting task is cancelled meanwhile.

    A cancellation is raised only when the future is done, so that the caller's state and the
    world's agree: `asyncio.shield` alone would return while the work goes on.
    """
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return future.result()
