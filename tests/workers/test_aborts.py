"""Sixteen requests to abort one operation, from every process and at any moment: it is aborted once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from harness.context import BACKGROUND
from harness.errors import OperationMismatch
from harness.result import Ok
from tests.workers.kit import Fleet
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import Reply, RequestAbort
from workers.host import SessionHost
from workers.watching import EventItem

REQUESTS = 16


@pytest.mark.parametrize("seed", range(3))
async def test_sixteen_aborts_are_one(fleet: Fleet, seed: int) -> None:
    rng = random.Random(seed)
    hosts = [await fleet.worker(), await fleet.worker(), await fleet.api(), await fleet.api()]
    session = await fleet.session()
    events: Counter[str] = Counter()

    async def watch() -> None:
        async for item in hosts[-1].watch(fleet.tenant, session, "main", BACKGROUND):
            if isinstance(item, EventItem):
                events[item.type] += 1

    watching = asyncio.ensure_future(watch())
    operation = await fleet.prompt(hosts[-2], session, gated("g"))

    async def abort(host: SessionHost, after: float) -> Reply:
        await asyncio.sleep(after)
        return await fleet.run(host, session, RequestAbort(lane="main", operation_id=operation))

    aborts = [
        asyncio.ensure_future(abort(hosts[number % len(hosts)], rng.uniform(0, 0.1)))
        for number in range(REQUESTS)
    ]
    await asyncio.wait(aborts, return_when=asyncio.FIRST_COMPLETED)
    # The tool takes its time: some of the requests come while it still runs, some when all is over.
    await asyncio.sleep(rng.uniform(0, 0.1))
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["aborted"]
    newly = 0
    for reply in await asyncio.gather(*aborts):
        if isinstance(reply, Ok):
            newly += b'"newlyRequested":true' in reply.value
        else:
            assert isinstance(reply.error, OperationMismatch)
    assert newly == 1
    late = await fleet.run(hosts[0], session, RequestAbort(lane="main", operation_id=operation))
    assert not isinstance(late, Ok)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    assert events["run_abort"] <= 1
    assert events["run_end"] <= 1
    receipts = await fleet.sql("SELECT status, outcome FROM laneway.operations")
    assert receipts == [("done", "aborted")]
    assert await fleet.sql("SELECT count(*) FROM laneway.open_operations") == [(0,)]
