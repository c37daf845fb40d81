"""What the model of the hosting protocol says of owners: their record is true, their rows agree with the state."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import Context
from harness.errors import LaneBusy
from harness.result import Err
from harness.runtime.harness import AgentHarness
from harness.runtime.requests import PromptRequest
from tests.workers.kit import Fleet, eventually
from tests.workers.test_wakes import FAILING
from workers import live
from workers.commands import Accept, Command, Reply, Resume
from workers.execute import Surroundings, execute
from workers.jobs import sweep_now


async def test_a_session_that_does_not_close_in_order_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await fleet.worker(linger_ms=0)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, FAILING)
    held = worker.get(fleet.tenant, session)
    assert held is not None

    async def fail(_context: Context) -> None:
        raise RuntimeError("a listener does not end")

    monkeypatch.setattr(held.harness, "close", fail)
    assert await fleet.settled(operation) == ["failed"]
    await eventually(lambda: worker.get(fleet.tenant, session) is None)
    assert await fleet.owner(session) is None
    assert session not in worker.lease.held


async def test_resuming_a_retry_does_not_make_its_row_due_before_its_state(fleet: Fleet) -> None:
    worker = await fleet.worker(hold_due_ms=0, retry_base_ms=3_600_000)
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, FAILING)

    async def given_back() -> bool:
        rows = await fleet.sql(
            "SELECT due_at FROM laneway.open_operations WHERE operation_id = %s", operation
        )
        late = rows[0][0] > worker.environment.clock.now_ms() + 60_000
        return late and await fleet.owner(session) is None

    await eventually(given_back)
    await fleet.ok(api, session, Resume(lane="main"))
    await eventually(given_back)
    assert await sweep_now(worker) == {}


async def test_commands_that_have_begun_end_before_the_session_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await fleet.api()
    session = await fleet.session()
    begun, go = asyncio.Event(), asyncio.Event()

    async def held(
        harness: AgentHarness, command: Command, surroundings: Surroundings, context: Context
    ) -> Reply:
        if isinstance(command, Accept) and command.request == second:
            begun.set()
            await go.wait()
        return await execute(harness, command, surroundings, context)

    monkeypatch.setattr(live, "execute", held)
    first = PromptRequest(prompt="echo: first", operation_id=api.environment.ids.next())
    second = PromptRequest(prompt="echo: second", operation_id=api.environment.ids.next())
    late = asyncio.ensure_future(fleet.refused(api, session, Accept(lane="main", request=second)))
    await begun.wait()
    # An accepted operation is a worker's to drive, so the API gives the session back at once.
    await fleet.ok(api, session, Accept(lane="main", request=first))
    assert await fleet.owner(session) == api.host_id
    go.set()
    assert isinstance(await late, LaneBusy)
    await eventually(lambda: api.get(fleet.tenant, session) is None)
    assert await fleet.owner(session) is None


async def test_requests_at_once_are_admitted_or_told_that_the_lane_is_busy(fleet: Fleet) -> None:
    apis = [await fleet.api(), await fleet.api()]
    await fleet.worker()
    for _ in range(20):
        session = await fleet.session()
        replies = await asyncio.gather(
            *(
                fleet.run(
                    apis[each % 2],
                    session,
                    Accept(lane="main", request=PromptRequest(prompt="echo: x")),
                )
                for each in range(4)
            )
        )
        refused = [reply.error for reply in replies if isinstance(reply, Err)]
        assert all(isinstance(error, LaneBusy) for error in refused), refused
        assert len(refused) < 4
