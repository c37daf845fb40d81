"""What the model of the hosting protocol says of owners: their record is true, their rows agree with the state."""

from __future__ import annotations

import pytest

from harness.context import Context
from tests.workers.kit import Fleet, eventually
from tests.workers.test_wakes import FAILING
from workers.commands import Resume
from workers.jobs import sweep_now


async def test_a_session_that_does_not_close_in_order_is_given_back(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await fleet.worker(linger_ms=0)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, FAILING)
    live = worker.get(fleet.tenant, session)
    assert live is not None

    async def fail(_context: Context) -> None:
        raise RuntimeError("a listener does not end")

    monkeypatch.setattr(live.harness, "close", fail)
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
