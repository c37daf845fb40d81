"""The scheduler's table says when somebody must look at an operation next, whatever happens."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.operation import values
from harness.operation.durable import OperationError
from harness.storage.writes import delete_value, set_value
from storage_pg.due import PollSettings
from storage_pg.hosts import bury_dead_hosts
from storage_pg.open_operations import (
    Outlook,
    Repair,
    dispatch_due,
    outlook,
    owner_of,
    sweep,
)
from storage_pg.passes import (
    TENANT_FULL,
    PassCount,
    Suspected,
    TenantFull,
    begin_pass,
    end_pass,
)
from storage_pg.sessions import OwnedSession
from storage_pg.storage import PostgresStorage
from tests.storage_pg.kit import Kit
from tests.storage_pg.operations import Op, compaction, ready, retry_wait, run, suspended

FAR = 4_000_000_000_000
POLLS = PollSettings()


def query(kit: Kit, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with psycopg.connect(kit.database.owner_dsn, autocommit=True) as owner:
        cursor = owner.execute(statement.encode(), parameters)
        return cursor.fetchall() if cursor.description else []


def due(kit: Kit, op: Op) -> int | None:
    rows = query(kit, "SELECT due_at FROM laneway.open_operations WHERE operation_id = %s", op.id)
    return int(str(rows[0][0])) if rows else None


async def accepted(kit: Kit, storage: PostgresStorage, lane: str = "main") -> Op:
    op = Op(kit.environment.ids.next(), lane)
    await storage.commit(op.accept(), BACKGROUND)
    return op


async def idle_operation(kit: Kit) -> tuple[Op, OwnedSession]:
    """An accepted operation in a session that nobody owns."""
    owned = await kit.open_new()
    op = await accepted(kit, owned.storage)
    await owned.storage.close(BACKGROUND)
    return op, owned


async def test_the_row_follows_the_state(kit: Kit) -> None:
    storage = await kit.new_storage()
    op = Op(kit.environment.ids.next())
    result = await storage.commit(op.accept(), BACKGROUND)
    assert due(kit, op) == result.timestamp
    await storage.commit(op.move(run(retry_wait(FAR))), BACKGROUND)
    assert due(kit, op) == FAR
    await storage.commit(op.move(run(retry_wait(FAR + 5))), BACKGROUND)
    assert due(kit, op) == FAR + 5
    result = await storage.commit(op.move(run(ready())), BACKGROUND)
    assert due(kit, op) == result.timestamp
    result = await storage.commit(op.move(run(suspended(0))), BACKGROUND)
    assert due(kit, op) == result.timestamp + POLLS.delay(0)
    result = await storage.commit(op.move(run(suspended(3))), BACKGROUND)
    assert due(kit, op) == result.timestamp + POLLS.delay(3)
    result = await storage.commit(op.move(run(suspended(3), cancelled=True)), BACKGROUND)
    assert due(kit, op) == result.timestamp
    await storage.commit(op.finish(), BACKGROUND)
    assert due(kit, op) is None


async def test_scheduler_and_receipt_name_the_instant_that_the_admission_names(kit: Kit) -> None:
    storage = await kit.new_storage()
    op = Op(kit.environment.ids.next())
    await storage.commit(op.accept(started_at=77), BACKGROUND)
    statements = (
        "SELECT accepted_at FROM laneway.open_operations WHERE operation_id = %s",
        "SELECT accepted_at FROM laneway.operations WHERE id = %s",
    )
    assert [query(kit, each, op.id) for each in statements] == [[(77,)]] * 2


async def test_structural_waits_count_too(kit: Kit) -> None:
    storage = await kit.new_storage()
    op = Op(kit.environment.ids.next())
    await storage.commit(op.accept(compaction()), BACKGROUND)
    await storage.commit(op.move(compaction(FAR)), BACKGROUND)
    assert due(kit, op) == FAR
    await storage.commit(op.decline(), BACKGROUND)
    rows = query(kit, "SELECT kind, outcome FROM laneway.operations WHERE id = %s", op.id)
    assert rows == [("compaction", "declined")]


def test_polls_grow_and_are_capped() -> None:
    assert [POLLS.delay(poll) for poll in (0, 1, 2)] == [5_000, 10_000, 20_000]
    assert POLLS.delay(500) == POLLS.longest


async def test_a_new_owner_knows_where_operations_stand(kit: Kit) -> None:
    owned = await kit.open_new()
    op = Op(kit.environment.ids.next())
    await owned.storage.commit(op.accept(), BACKGROUND)
    await owned.storage.commit(op.move(run(retry_wait(FAR))), BACKGROUND)
    await owned.storage.close(BACKGROUND)
    again = await kit.sessions.open(kit.tenant, owned.claimed.id)
    result = await again.storage.commit(op.move(run(ready())), BACKGROUND)
    assert due(kit, op) == result.timestamp
    await again.storage.commit(op.finish(), BACKGROUND)
    assert due(kit, op) is None


async def test_receipts_are_kept_for_ever(kit: Kit) -> None:
    storage = await kit.new_storage()
    op = Op(kit.environment.ids.next())
    await storage.commit(op.accept(started_at=77), BACKGROUND)
    columns = "SELECT status, outcome, error, result, accepted_at, finished_at, lane, kind"
    rows = query(kit, f"{columns} FROM laneway.operations WHERE id = %s", op.id)
    assert rows == [("open", None, None, None, 77, None, "main", "run")]
    error = OperationError(code="boom", message="no\x00good \ud800")
    last = await storage.commit(op.finish(error), BACKGROUND)
    rows = query(kit, f"{columns} FROM laneway.operations WHERE id = %s", op.id)
    status, outcome, stored, result, _, finished, _, _ = rows[0]
    assert (status, outcome, finished) == ("done", "failed", last.timestamp)
    assert json.loads(str(stored)) == {"code": "boom", "message": "no\x00good \ud800"}
    assert json.loads(str(result))["operationId"] == op.id


async def test_due_operations_are_dispatched_once(fresh_kit: Kit) -> None:
    kit = fresh_kit
    op, owned = await idle_operation(kit)
    now = kit.environment.clock.now_ms()
    chosen = await dispatch_due(kit.pool, now)
    assert [(d.operation_id, d.session_id, d.tenant_id, d.lane) for d in chosen] == [
        (op.id, owned.claimed.id, kit.tenant, "main")
    ]
    assert await dispatch_due(kit.pool, now + 10) == []
    # Nobody came for it: again.
    assert len(await dispatch_due(kit.pool, now + 5_000)) == 1


async def test_what_a_live_worker_owns_is_its_own_to_drive(fresh_kit: Kit) -> None:
    kit = fresh_kit
    owned = await kit.open_new()
    await accepted(kit, owned.storage)
    now = kit.environment.clock.now_ms()
    assert await dispatch_due(kit.pool, now) == []
    owner = await owner_of(kit.pool, kit.tenant, owned.claimed.id)
    assert owner is not None
    assert owner.host_id == kit.lease.host_id
    await owned.storage.close(BACKGROUND)
    assert await owner_of(kit.pool, kit.tenant, owned.claimed.id) is None
    assert len(await dispatch_due(kit.pool, now)) == 1


async def test_an_api_host_drives_nothing(fresh_kit: Kit) -> None:
    kit = fresh_kit
    _op, owned = await idle_operation(kit)
    api = kit.new_lease(role="api")
    await api.start()
    await api.claim(kit.tenant, owned.claimed.id)
    assert len(await dispatch_due(kit.pool, kit.environment.clock.now_ms())) == 1
    await api.close()


async def test_future_operations_wait_for_their_instant(fresh_kit: Kit) -> None:
    kit = fresh_kit
    owned = await kit.open_new()
    op = await accepted(kit, owned.storage)
    now = kit.environment.clock.now_ms()
    await owned.storage.commit(op.move(run(retry_wait(now + 60_000))), BACKGROUND)
    await owned.storage.close(BACKGROUND)
    assert await dispatch_due(kit.pool, now) == []
    assert await outlook(kit.pool, now) == Outlook(now + 60_000, backlog=False)
    assert len(await dispatch_due(kit.pool, now + 60_000)) == 1
    assert await outlook(kit.pool, now + 60_000) == Outlook(None, backlog=False)


async def test_tenants_take_turns(fresh_kit: Kit) -> None:
    kit = fresh_kit
    flood = await kit.open_new()
    for index in range(40):
        await accepted(kit, flood.storage, f"lane-{index}")
    await flood.storage.close(BACKGROUND)
    first, kit.tenant = kit.tenant, kit.new_tenant()
    single, _ = await idle_operation(kit)
    chosen = await dispatch_due(kit.pool, kit.environment.clock.now_ms(), at_most=10)
    assert single.id in {d.operation_id for d in chosen}
    assert sum(d.tenant_id == first for d in chosen) == 5


async def test_a_tenants_limit_holds_across_calls(fresh_kit: Kit) -> None:
    kit = fresh_kit
    query(
        kit,
        "UPDATE laneway.tenants SET limits = '{\"concurrentDrives\": 3}' WHERE id = %s",
        kit.tenant,
    )
    sessions = [await idle_operation(kit) for _ in range(8)]
    now = kit.environment.clock.now_ms()
    chosen = await dispatch_due(kit.pool, now)
    assert len(chosen) == 3
    assert await dispatch_due(kit.pool, now + 1) == []
    # Two are claimed, which frees no slot; one of them ends, which does.
    by_session = {owned.claimed.id: op for op, owned in sessions}
    claimed = [await kit.sessions.open(kit.tenant, d.session_id) for d in chosen[:2]]
    assert await dispatch_due(kit.pool, now + 2) == []
    await claimed[0].storage.commit(by_session[claimed[0].claimed.id].finish(), BACKGROUND)
    assert len(await dispatch_due(kit.pool, now + 3)) == 1


async def begun(
    kit: Kit,
    session_id: str,
    op: Op,
    reason: str | None = None,
    limit: int = 64,
    *,
    alone: bool = False,
) -> PassCount | TenantFull | Suspected | None:
    return await begin_pass(
        kit.pool,
        kit.tenant,
        session_id,
        op.id,
        host_id=kit.lease.host_id,
        tenant_limit=limit,
        alone=alone,
        reason=reason,
    )


async def ended(
    kit: Kit, session_id: str, op: Op, *, excused: bool = False, reason: str | None = None
) -> None:
    await end_pass(
        kit.pool,
        kit.tenant,
        session_id,
        op.id,
        host_id=kit.lease.host_id,
        excused=excused,
        reason=reason,
    )


async def test_passes_without_progress_are_counted(kit: Kit) -> None:
    owned = await kit.open_new()
    op = await accepted(kit, owned.storage)
    session = owned.claimed.id
    assert await begun(kit, session, op) == PassCount(1, None)
    assert await begun(kit, session, op, "a\0\udc00b") == PassCount(2, "a\ufffd\ufffd\ufffdb")
    alone = await begun(kit, session, op, alone=True)
    assert alone == PassCount(3, "a\ufffd\ufffd\ufffdb")
    await ended(kit, session, op, excused=True, reason="not said")
    assert await begun(kit, session, op) == PassCount(3, "a\ufffd\ufffd\ufffdb")
    await ended(kit, session, op, reason="b\0")
    assert await begun(kit, session, op) == PassCount(4, "b")
    await owned.storage.commit(op.move(run(ready())), BACKGROUND)
    assert await begun(kit, session, op) == PassCount(1, None)
    await owned.storage.commit(op.finish(), BACKGROUND)
    assert await begun(kit, session, op) is None


async def test_a_tenant_begins_no_more_passes_than_its_limit(fresh_kit: Kit) -> None:
    kit = fresh_kit
    owned = await kit.open_new()
    session = owned.claimed.id
    ops = [await accepted(kit, owned.storage, f"lane-{index}") for index in range(3)]
    assert await begun(kit, session, ops[0], limit=2) == PassCount(1, None)
    assert await begun(kit, session, ops[1], limit=2) == PassCount(1, None)
    assert await begun(kit, session, ops[2], limit=2) is TENANT_FULL
    # One that is under way takes no second place.
    assert await begun(kit, session, ops[0], limit=2) == PassCount(2, None)
    await ended(kit, session, ops[1])
    assert await begun(kit, session, ops[2], limit=2) == PassCount(1, None)
    # What a dead host was driving takes no place.
    await kit.lose_lease()
    await bury_dead_hosts(kit.pool)
    again = await kit.sessions.open(kit.tenant, session)
    assert await begun(kit, session, ops[1], limit=2) == PassCount(2, None)
    # Given back, a session drives nothing.
    await again.storage.close(BACKGROUND)
    left = query(
        kit,
        "SELECT count(driven_by) FROM laneway.open_operations WHERE driven_by = %s",
        kit.lease.host_id,
    )
    assert left == [(0,)]


async def test_who_dies_with_a_session_before_a_pass_began_may_have_died_of_it(
    fresh_kit: Kit,
) -> None:
    kit = fresh_kit
    waiting, waiting_session = await idle_operation(kit)
    driven, driven_session = await idle_operation(kit)
    assert len(await dispatch_due(kit.pool, kit.environment.clock.now_ms())) == 2
    for owned in (waiting_session, driven_session):
        await kit.sessions.open(kit.tenant, owned.claimed.id)
    await begun(kit, driven_session.claimed.id, driven)
    await kit.lose_lease()
    await bury_dead_hosts(kit.pool)
    rows = query(kit, "SELECT operation_id::text, passes FROM laneway.open_operations")
    counted = {row[0]: row[1] for row in rows}
    assert counted == {waiting.id: 1, driven.id: 1}


async def swept(kit: Kit) -> list[Repair]:
    now = kit.environment.clock.now_ms
    return [repair async for repair in sweep(kit.pool, now, POLLS)]


async def test_a_sweep_that_waits_for_the_database_judges_by_the_time_it_gets_its_page(
    fresh_kit: Kit,
) -> None:
    kit, asked = fresh_kit, list[int]()

    def now() -> int:
        asked.append(kit.environment.clock.now_ms())
        return asked[-1]

    async def sweeping() -> list[Repair]:
        return [repair async for repair in sweep(kit.pool, now, POLLS)]

    async with AsyncExitStack() as held:
        for _ in range(kit.pool.max_size):
            await held.enter_async_context(kit.pool.connection())
        waiting = asyncio.ensure_future(sweeping())
        await asyncio.sleep(0.05)
        assert asked == []
    assert await waiting == []
    assert len(asked) == 1


async def test_a_healthy_system_has_nothing_to_sweep(fresh_kit: Kit) -> None:
    kit = fresh_kit
    owned = await kit.open_new()
    for index, phase in enumerate((ready(), retry_wait(FAR), suspended(2))):
        op = await accepted(kit, owned.storage, f"lane-{index}")
        await owned.storage.commit(op.move(run(phase)), BACKGROUND)
    await idle_operation(kit)
    done = await accepted(kit, owned.storage, "done")
    await owned.storage.commit(done.finish(), BACKGROUND)
    assert await swept(kit) == []


@pytest.mark.parametrize(
    ("damage", "difference"),
    [
        ("DELETE FROM laneway.open_operations WHERE operation_id = %s", "missing"),
        ("UPDATE laneway.open_operations SET due_at = 1 WHERE operation_id = %s", "wrong_due"),
    ],
)
async def test_the_sweep_repairs(fresh_kit: Kit, damage: str, difference: str) -> None:
    kit = fresh_kit
    owned = await kit.open_new()
    op = await accepted(kit, owned.storage)
    await owned.storage.commit(op.move(run(retry_wait(FAR))), BACKGROUND)
    query(kit, damage, op.id)
    assert await swept(kit) == [Repair(op.id, owned.claimed.id, kit.tenant, difference)]  # pyright: ignore[reportArgumentType]
    assert due(kit, op) == FAR
    assert await swept(kit) == []


async def test_the_sweep_removes_rows_of_operations_that_are_over(fresh_kit: Kit) -> None:
    kit = fresh_kit
    owned = await kit.open_new()
    stray = kit.environment.ids.next()
    query(
        kit,
        "INSERT INTO laneway.open_operations VALUES (%s, %s, %s, 'main', 'run', 1, 1)",
        stray,
        kit.tenant,
        owned.claimed.id,
    )
    # More than a page of healthy ones around it.
    for index in range(12):
        await accepted(kit, owned.storage, f"lane-{index}")
    assert [(r.operation_id, r.difference) for r in await swept(kit)] == [(stray, "stray")]
    assert await swept(kit) == []


async def test_a_state_without_acceptance_makes_no_row(kit: Kit) -> None:
    storage = await kit.new_storage()
    op = Op(kit.environment.ids.next())
    await storage.commit(op.accept()[1:], BACKGROUND)
    assert due(kit, op) is None


async def test_the_listed_name_is_the_sessions(kit: Kit) -> None:
    owned = await kit.open_new()
    for write, listed in (
        (set_value(values.SESSION_NAME, "renamed"), "renamed"),
        (set_value(values.SESSION_NAME, "a\x00b\ud800"), "a\ufffdb\ufffd\ufffd\ufffd"),
        (delete_value(values.SESSION_NAME), None),
    ):
        await owned.storage.commit([write], BACKGROUND)
        rows = query(kit, "SELECT name FROM laneway.sessions WHERE id = %s", owned.claimed.id)
        assert rows == [(listed,)]
