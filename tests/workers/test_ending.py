"""Tasks end although a cancellation is lost on its way to them."""

from __future__ import annotations

import asyncio

from workers.ending import end_tasks


async def test_a_lost_cancellation_is_repeated() -> None:
    lost = 0

    async def loop() -> None:
        nonlocal lost
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                # What a library does that has its result just then.
                if lost == 2:
                    raise
                lost += 1

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("its own business")

    async def over() -> None:
        return None

    tasks = [asyncio.ensure_future(work()) for work in (loop, fails, over)]
    await asyncio.sleep(0)
    await end_tasks(tasks, again=0.01)
    assert lost == 2
    assert all(task.done() for task in tasks)
    await end_tasks([])
