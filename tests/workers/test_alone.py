"""A poisonous operation takes no innocent one with it: suspects are driven one at a time (design §6)."""

from __future__ import annotations

import asyncio

from harness.context import Context
from harness.runtime.hooks import BeforeDrive
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.test_poison import error_of, hook
from tests.workers.tools import GATES
from workers.commands import CreateLane, RequestAbort, Steer
from workers.host import SessionHost

# A suspect that waits: its session is owned, and neither a job nor a pass of the owner has it.
_WAITING = (
    "SELECT o.operation_id::text FROM laneway.open_operations AS o"
    " JOIN laneway.sessions AS s ON s.id = o.session_id AND s.owner_host = %s"
    " WHERE o.dispatched_at IS NULL AND o.driven_by IS DISTINCT FROM s.owner_host"
)
_DRIVEN = "SELECT operation_id::text FROM laneway.open_operations WHERE driven_by = %s"


async def ids(fleet: Fleet, query: str, host: str | None) -> set[str]:
    """The operations that a query names for a host."""
    return {row[0] for row in await fleet.sql(query, host)}


async def test_a_poison_takes_nobody_with_it(fleet: Fleet) -> None:
    """One worker at a time, as a supervisor that starts it again has it; each dies the moment that
    the poison's tool starts. The others' tools take longer than it lives beside the poison."""
    api = await fleet.api()
    gates: dict[str, str] = {}
    for number in range(2):
        long = gated(f"long{number}", "gated_safe")
        gates[await fleet.prompt(api, await fleet.session(), long)] = f"long{number}"
    poison = await fleet.prompt(api, await fleet.session(), gated("deadly", "gated_safe"))
    for number in range(2, 4):
        long = gated(f"long{number}", "gated_safe")
        gates[await fleet.prompt(api, await fleet.session(), long)] = f"long{number}"
    deaths = most = 0
    while await fleet.outcome(poison) is None:
        worker = await fleet.worker()
        host = worker.host_id

        async def over(host: str | None = host, deaths: int = deaths) -> bool:
            if GATES["deadly"].starts > deaths:
                return True
            driven = await ids(fleet, _DRIVEN, host)
            if poison in await ids(fleet, _WAITING, host):
                # It is not there, so the host lives as long as a tool may take.
                for operation in driven & gates.keys():
                    GATES[gates[operation]].release.set()
            return await fleet.outcome(poison) is not None

        await eventually(over)
        if GATES["deadly"].starts > deaths:
            deaths += 1
            await fleet.kill(worker)
        rows = await fleet.sql("SELECT operation_id::text, passes FROM laneway.open_operations")
        most = max(most, *(passes for operation, passes in rows if operation != poison), 0)
    for gate in gates.values():
        GATES[gate].release.set()
    assert await fleet.settled(poison) == ["failed"]
    assert (await error_of(fleet, poison))["code"] == "crash_loop"
    # The first pass came as far as the tool; five more only repeated it.
    assert deaths == 6
    assert set(await fleet.settled(*gates)) == {"completed"}
    assert most <= 3


async def suspects(fleet: Fleet, *gates: str, tenants: tuple[str, ...] = ()) -> list[str]:
    """Operations, each of a session (and of the tenant) of its own, whose safe tools a host was
    driving when it died, for the second time in a row."""
    dying = await fleet.worker()
    operations: list[str] = []
    for number, gate in enumerate(gates):
        tenant = tenants[number] if tenants else fleet.tenant
        session = await fleet.session_of(tenant)
        prompt = gated(gate, "gated_safe")
        operations.append(await fleet.prompt_of(tenant, dying, session, prompt))
        await GATES[gate].entered.wait()
    await fleet.kill(dying)
    await fleet.sql(
        "UPDATE laneway.open_operations AS o SET passes = 2, progress_seq = v.seq"
        " FROM laneway.scalar_values AS v"
        " WHERE v.namespace = 'pi.op.state' AND v.key = o.operation_id::text"
    )
    return operations


async def session_of(fleet: Fleet, operation: str) -> str:
    """The session that an operation is in."""
    rows = await fleet.sql(
        "SELECT session_id::text FROM laneway.operations WHERE id = %s", operation
    )
    return rows[0][0]


async def one_driven(fleet: Fleet, host: SessionHost, *operations: str) -> tuple[str, str]:
    """Return when one of two suspects is driven at the host and the other one waits there."""
    found: list[str] = []

    async def so() -> bool:
        driven = await ids(fleet, _DRIVEN, host.host_id) & set(operations)
        waiting = await ids(fleet, _WAITING, host.host_id) & set(operations)
        found[:] = [*driven, *waiting]
        return len(driven) == len(waiting) == 1 and host._suspects.waiting == 1

    await eventually(so)
    return found[0], found[1]


async def test_two_tenants_suspects_are_driven_one_after_the_other(fleet: Fleet) -> None:
    api = await fleet.api()
    tenants = (await fleet.new_tenant(), await fleet.new_tenant())
    operations = await suspects(fleet, "one", "two", tenants=tenants)
    gate_of = dict(zip(operations, ("one", "two"), strict=True))
    tenant_of = dict(zip(operations, tenants, strict=True))
    worker = await fleet.worker(max_drives=2, alone_seconds=3_600)
    driven, waiting = await one_driven(fleet, worker, *operations)
    # The one that waits takes no place, and keeps neither others nor its session's other lanes.
    assert worker.slots.free == 1
    session = await session_of(fleet, waiting)
    await fleet.ok_of(tenant_of[waiting], api, session, CreateLane(name="side"))
    beside = [
        await fleet.prompt(api, await fleet.session(), "echo: x"),
        await fleet.prompt_of(tenant_of[waiting], api, session, "echo: x", "side"),
    ]
    assert await fleet.settled(*beside) == ["completed"] * 2
    assert waiting in await ids(fleet, _WAITING, worker.host_id)
    assert GATES[gate_of[waiting]].starts == 1
    seen = worker.metrics.registry.get_sample_value("laneway_suspects_waiting")
    assert seen == 1
    GATES[gate_of[driven]].release.set()
    await eventually(lambda: GATES[gate_of[waiting]].starts == 2)
    GATES[gate_of[waiting]].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 2


async def test_a_suspect_that_made_progress_keeps_nobody_waiting(fleet: Fleet) -> None:
    await fleet.api()
    operations = await suspects(fleet, "one", "two")
    worker = await fleet.worker(alone_seconds=3_600)
    gate_of = dict(zip(operations, ("one", "two"), strict=True))
    driven, waiting = await one_driven(fleet, worker, *operations)
    # It is told to call the tool once more, and so goes on after the step it was a suspect for.
    session = await session_of(fleet, driven)
    await fleet.ok(worker, session, Steer(lane="main", message=gated("again")))
    GATES[gate_of[driven]].release.set()
    await GATES["again"].entered.wait()
    await eventually(lambda: GATES[gate_of[waiting]].starts == 2)
    assert GATES["again"].ends == 0
    GATES["again"].release.set()
    GATES[gate_of[waiting]].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 2


async def test_a_turn_ends_with_its_pass(fleet: Fleet) -> None:
    await fleet.api()
    operations = await suspects(fleet, "one", "two")
    worker = await fleet.host("worker", jobs=False, alone_seconds=3_600)
    calls: list[str] = []
    go_on = asyncio.Event()

    async def failing_once(event: BeforeDrive, _context: Context) -> None:
        calls.append(event.run_id)
        if calls == [event.run_id]:
            raise ValueError("not yet")
        if event.run_id == calls[0]:
            await go_on.wait()

    hook(worker, failing_once)
    for operation in operations:
        await worker.drive(fleet.tenant, await session_of(fleet, operation), "main", operation)
    # The first one's next pass, after one that ended in order, is no suspect's: it hangs in the hook.
    await eventually(lambda: sum(GATES[gate].starts for gate in ("one", "two")) == 3)
    await eventually(lambda: len(calls) == 3)
    go_on.set()
    for gate in ("one", "two"):
        GATES[gate].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 2


async def test_a_suspect_whose_turn_it_is_keeps_the_place_that_it_came_with(fleet: Fleet) -> None:
    """Others wait for every place of the host: one given back would be theirs, and the suspect
    would come to nothing as often as it is dispatched."""
    api = await fleet.api()
    (suspect,) = await suspects(fleet, "one")
    worker = await fleet.host("worker", jobs=False, max_drives=1, alone_seconds=3_600)
    held = await fleet.prompt(worker, await fleet.session(), gated("held"))
    await GATES["held"].entered.wait()
    later = await fleet.prompt(api, await fleet.session(), gated("later"))
    for operation in (suspect, later):
        session = await session_of(fleet, operation)
        assert await worker.drive(fleet.tenant, session, "main", operation) == "waits"
    GATES["held"].release.set()
    await eventually(lambda: GATES["one"].starts == 2 or GATES["later"].starts == 1)
    assert GATES["later"].starts == 0
    assert await ids(fleet, _DRIVEN, worker.host_id) == {suspect}
    GATES["one"].release.set()
    assert await fleet.settled(held, suspect) == ["completed"] * 2


async def test_a_suspect_that_lives_long_keeps_nobody_waiting(fleet: Fleet) -> None:
    await fleet.api()
    operations = await suspects(fleet, "one", "two")
    await fleet.worker(alone_seconds=0.2)
    await eventually(lambda: (GATES["one"].starts, GATES["two"].starts) == (2, 2))
    assert await fleet.sql("SELECT passes FROM laneway.open_operations") == [(3,), (3,)]
    for gate in ("one", "two"):
        GATES[gate].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 2


async def test_a_suspect_that_waits_goes_elsewhere_when_its_host_leaves(fleet: Fleet) -> None:
    await fleet.api()
    operations = await suspects(fleet, "one", "two")
    gate_of = dict(zip(operations, ("one", "two"), strict=True))
    leaving = await fleet.worker(alone_seconds=3_600)
    driven, waiting = await one_driven(fleet, leaving, *operations)
    staying = await fleet.worker(alone_seconds=3_600)
    drained = asyncio.ensure_future(leaving.drain(3_600))
    await eventually(lambda: GATES[gate_of[waiting]].starts == 2)
    assert await ids(fleet, _DRIVEN, staying.host_id) == {waiting}
    assert not drained.done()
    assert GATES[gate_of[driven]].starts == 2
    for gate in ("one", "two"):
        GATES[gate].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 2
    await drained
    assert leaving._suspects.waiting == 0


async def test_a_suspect_that_waits_goes_elsewhere_when_its_host_dies(fleet: Fleet) -> None:
    await fleet.api()
    operations = await suspects(fleet, "one", "two")
    dying = await fleet.worker(alone_seconds=3_600)
    driven, waiting = await one_driven(fleet, dying, *operations)
    await fleet.kill(dying)
    third = await fleet.worker(alone_seconds=3_600)
    await one_driven(fleet, third, *operations)
    rows = await fleet.sql("SELECT operation_id::text, passes FROM laneway.open_operations")
    passes = dict(rows)
    # The death was charged to the one that was driven; the pass that runs now is the other count.
    running = await ids(fleet, _DRIVEN, third.host_id)
    assert passes[driven] - (driven in running) == 3
    assert passes[waiting] - (waiting in running) == 2
    for gate in ("one", "two"):
        GATES[gate].release.set()
    assert await fleet.settled(*operations) == ["completed"] * 2


async def test_a_suspect_that_waits_can_be_aborted_at_once(fleet: Fleet) -> None:
    await fleet.api()
    operations = await suspects(fleet, "one", "two")
    gate_of = dict(zip(operations, ("one", "two"), strict=True))
    worker = await fleet.worker(alone_seconds=3_600)
    driven, waiting = await one_driven(fleet, worker, *operations)
    session = await session_of(fleet, waiting)
    await fleet.ok(worker, session, RequestAbort(lane="main", operation_id=waiting))
    assert await fleet.settled(waiting) == ["aborted"]
    assert worker._suspects.waiting == 0
    GATES[gate_of[driven]].release.set()
    assert await fleet.settled(driven) == ["completed"]
