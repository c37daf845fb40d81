"""Who drives: hand-over, death, zombies, lost leases, two lanes at once."""

from __future__ import annotations

import asyncio

from tests.workers.kit import Fleet, eventually
from tests.workers.tools import GATES
from workers.commands import CreateLane
from workers.host import SessionHost


def gated(gate: str, tool: str = "gated") -> str:
    """A prompt whose run stops in a tool."""
    return f'tool: {{"name": "{tool}", "arguments": {{"gate": "{gate}"}}}}'


async def test_two_lanes_of_one_session_run_at_the_same_time(fleet: Fleet) -> None:
    worker = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    await fleet.ok(api, session, CreateLane(name="side"))
    one = await fleet.prompt(api, session, gated("one"))
    await GATES["one"].entered.wait()
    # The session is owned: this goes to its owner, which drives it without any job.
    two = await fleet.prompt(api, session, gated("two"), lane="side")
    await GATES["two"].entered.wait()
    assert worker.registry.driving == 2
    GATES["two"].release.set()
    assert await fleet.settled(two) == ["completed"]
    GATES["one"].release.set()
    assert await fleet.settled(one) == ["completed"]


async def test_a_job_for_an_owned_session_is_handed_over(fleet: Fleet) -> None:
    owner = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, gated("g"))
    await GATES["g"].entered.wait()
    other = await fleet.host("worker", jobs=False)
    assert await other.drive(fleet.tenant, session, "main", operation) == "handed over"
    assert await owner.drive(fleet.tenant, session, "main", operation) == "owned"
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    assert GATES["g"].starts == 1


async def test_a_job_for_nothing_does_nothing(fleet: Fleet) -> None:
    worker = await fleet.worker()
    session = await fleet.session()
    over = await fleet.prompt(worker, session, "echo: x")
    await fleet.settled(over)
    before = await fleet.texts(session)
    for operation in (over, worker.environment.ids.next()):
        assert await worker.drive(fleet.tenant, session, "main", operation) in ("claimed", "owned")
    gone = worker.environment.ids.next()
    assert await worker.drive(fleet.tenant, gone, "main", over) == "gone"
    await eventually(lambda: not worker.registry.busy)
    assert await fleet.texts(session) == before


async def _holding(fleet: Fleet, tool: str, *, jobs: bool = True) -> tuple[SessionHost, str, str]:
    worker = await fleet.host("worker", jobs=jobs)
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, gated("g", tool))
    await GATES["g"].entered.wait()
    return worker, session, operation


async def test_a_dead_hosts_work_goes_on_elsewhere(fleet: Fleet) -> None:
    worker, session, operation = await _holding(fleet, "gated_safe")
    second = await fleet.worker()
    await fleet.kill(worker)
    await eventually(lambda: GATES["g"].starts == 2)
    assert await fleet.owner(session) == second.host_id
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    assert second.deaths.counts.buried == 1


async def test_a_tool_that_may_not_be_repeated_is_not_after_a_death(fleet: Fleet) -> None:
    worker, session, operation = await _holding(fleet, "gated")
    await fleet.worker()
    await fleet.kill(worker)
    assert await fleet.settled(operation) == ["completed"]
    assert GATES["g"].starts == 1
    results = [text for text in await fleet.texts(session) if '"toolResult"' in text]
    assert len(results) == 1
    assert '"isError":true' in results[0]


async def test_a_zombie_writes_nothing(fleet: Fleet) -> None:
    # It looks for no work: a claim would be the first to hear that the connection is gone.
    zombie, session, operation = await _holding(fleet, "gated_safe", jobs=False)
    heartbeat, connection = zombie.lease._heartbeat, zombie.lease._connection
    assert heartbeat is not None
    assert connection is not None
    # It will not hear that its lease is gone, neither from the connection nor from its row.
    heartbeat.stop()
    heartbeat.join()
    connection._unwatch()
    first = zombie.host_id
    second = await fleet.worker()
    await fleet.sql(
        "SELECT pg_terminate_backend(lease_pid) FROM laneway.hosts WHERE id = %s", first
    )
    await eventually(lambda: GATES["g"].starts == 2)
    # Both hosts now run the tool; both finish it, and only the owner's result counts.
    assert zombie.registry.driving == 1
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    await eventually(lambda: zombie.registry.driving == 0)
    results = [text for text in await fleet.texts(session) if '"toolResult"' in text]
    assert len(results) == 1
    assert GATES["g"].ends == 2
    await eventually(lambda: second.registry.all() == [])


async def test_a_host_that_lost_its_lease_takes_the_work_again_as_a_new_host(
    fleet: Fleet,
) -> None:
    worker, session, operation = await _holding(fleet, "gated_safe")
    first = worker.host_id
    await fleet.sql(
        "SELECT pg_terminate_backend(lease_pid) FROM laneway.hosts WHERE id = %s", first
    )
    await eventually(lambda: GATES["g"].starts == 2)
    assert worker.host_id not in (first, None)
    assert await fleet.owner(session) == worker.host_id
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_silent_host_is_cut_off(fleet: Fleet) -> None:
    silent, _session, operation = await _holding(fleet, "gated_safe")
    heartbeat, connection = silent.lease._heartbeat, silent.lease._connection
    assert heartbeat is not None
    assert connection is not None
    # As if the process were stopped: no heartbeat, and deaf to its connection.
    heartbeat.stop()
    connection._unwatch()
    await fleet.worker(silent_seconds=0.5)
    await eventually(lambda: GATES["g"].starts == 2)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_worker_waits_for_an_apis_short_claim(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    worker = await fleet.host("worker", jobs=False)
    async with api.registry.owning(fleet.tenant, session):
        job = asyncio.ensure_future(
            worker.drive(fleet.tenant, session, "main", api.environment.ids.next())
        )
        await asyncio.sleep(0.05)
        assert not job.done()
    assert await job == "claimed"


async def test_fifty_operations_over_three_workers(fleet: Fleet) -> None:
    for _ in range(3):
        await fleet.worker()
    api = await fleet.api()
    sessions = [await fleet.session() for _ in range(10)]
    operations: list[str] = []
    for round_ in range(5):
        batch = await asyncio.gather(
            *(fleet.prompt(api, session, f"echo: round {round_}") for session in sessions)
        )
        assert set(await fleet.settled(*batch)) == {"completed"}
        operations += batch
    rows = await fleet.sql("SELECT count(*) FROM laneway.open_operations")
    assert rows == [(0,)]
    assert len(set(operations)) == 50
