"""A worker takes what an API host offers, and whatever goes wrong with that, it is accepted once and driven."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest

from harness.context import BACKGROUND
from harness.errors import SessionNotFound
from harness.result import Ok
from harness.runtime.requests import PromptRequest
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers import peers, routing
from workers.commands import Accept, CreateLane
from workers.host import SessionHost
from workers.live import Retired
from workers.meter import Offer
from workers.taking import NoRoom

# An offer that is good for as long as a test lasts (Unix ms).
LATER = 2**53


def offers(api: SessionHost) -> dict[str, float]:
    read = api.metrics.registry.get_sample_value
    counts = {name: read("laneway_offers_total", {"answer": name}) for name in get_args(Offer)}
    return {name: count for name, count in counts.items() if count}


def jobs_of(*hosts: SessionHost) -> int:
    return sum(host.dispatcher.counts.jobs + host.dispatcher.counts.taken for host in hosts)


async def test_an_operation_needs_one_claim_and_no_dispatch(fleet: Fleet) -> None:
    worker, api = await fleet.worker(), await fleet.api()
    session = await fleet.session()
    for number in range(3):
        operation = await fleet.prompt(api, session, f"echo: {number}")
        assert await fleet.settled(operation) == ["completed"]
        await eventually(lambda: worker.registry.all() == [])
    assert jobs_of(worker, api) == 0
    assert offers(api) == {"taken": 3}
    (fence,) = (await fleet.sql("SELECT fence FROM laneway.sessions WHERE id = %s", session))[0]
    assert fence == 3, "one claim a run"


async def test_without_room_it_is_accepted_all_the_same(fleet: Fleet) -> None:
    worker, api = await fleet.worker(max_drives=1), await fleet.api()
    first = await fleet.prompt(api, await fleet.session(), gated("room"))
    await GATES["room"].entered.wait()
    second = await fleet.prompt(api, await fleet.session(), "echo: later")
    assert await fleet.outcome(second) is None
    with pytest.raises(NoRoom):
        await _take(fleet, worker, await fleet.session())
    assert offers(api) == {"taken": 1, "no_room": 1}
    GATES["room"].release.set()
    assert await fleet.settled(first, second) == ["completed", "completed"]


async def test_a_process_that_takes_no_work_is_passed_over(fleet: Fleet) -> None:
    idle = await fleet.host("worker", jobs=False)
    api = await fleet.api()
    with pytest.raises(NoRoom):
        await _take(fleet, idle, await fleet.session())
    operation = await fleet.prompt(api, await fleet.session(), "echo: x")
    assert await fleet.outcome(operation) is None
    worker = await fleet.worker()
    assert await fleet.settled(operation) == ["completed"]
    await worker.drain(0)
    with pytest.raises(NoRoom):
        await _take(fleet, worker, await fleet.session())
    assert worker.slots.used == 0


async def test_a_session_that_is_owned_elsewhere_is_left_there(fleet: Fleet) -> None:
    owner, other, api = await fleet.worker(), await fleet.worker(), await fleet.api()
    session = await fleet.session()
    held = await fleet.prompt(owner, session, gated("owned"))
    await GATES["owned"].entered.wait()
    with pytest.raises(Retired):
        await _take(fleet, other, session)
    assert other.slots.used == 0
    # Through the API it reaches the owner, on whichever way.
    await fleet.ok(api, session, CreateLane(name="second"))
    second = await fleet.prompt(api, session, "echo: beside", lane="second")
    assert await fleet.settled(second) == ["completed"]
    assert await fleet.owner(session) == owner.host_id
    GATES["owned"].release.set()
    assert await fleet.settled(held) == ["completed"]


async def test_the_answer_may_get_lost(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, api = await fleet.worker(), await fleet.api()
    session = await fleet.session()
    take = worker._taking.take
    taken = 0

    async def forgetful(*arguments: Any, until: int) -> Any:
        nonlocal taken
        taken += 1
        await take(*arguments, until=until)
        raise TimeoutError("nobody hears of it")

    monkeypatch.setattr(worker._taking, "take", forgetful)
    operation = await fleet.prompt(api, session, "echo: once")
    assert taken == 1
    assert offers(api) == {"no_answer": 1}
    assert await fleet.settled(operation) == ["completed"]
    assert len(await fleet.texts(session)) == 2


@pytest.mark.parametrize("lost", [0, 1], ids=["a late twin", "after a lost answer"])
async def test_who_asks_when_others_have_run_since_hears_of_its_own(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    await fleet.worker()
    api, other = await fleet.api(), await fleet.api()
    session = await fleet.session()
    operation = api.environment.ids.next()
    prompt = PromptRequest(prompt="echo: mine", operation_id=operation)
    request = Accept(lane="main", request=prompt)
    attempt, attempts = api._router._attempt, 0
    accepted = [operation]

    async def overtaken(*arguments: Any, offers: bool) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts <= lost:
            return routing._Again("nobody answers", unknown=True, soon=True)
        await fleet.ok(other, session, request)
        # The lane itself remembers the last one, and the one before that no longer.
        for text in ("echo: the next", gated("after")):
            assert set(await fleet.settled(*accepted)) == {"completed"}
            accepted.append(await fleet.prompt(other, session, text))
        await GATES["after"].entered.wait()
        return await attempt(*arguments, offers=offers)

    monkeypatch.setattr(api._router, "_attempt", overtaken)
    assert (await fleet.ok(api, session, request))["operationId"] == operation
    assert attempts == lost + 1
    GATES["after"].release.set()


async def test_an_older_worker_does_not_know_the_way(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fleet.worker()
    monkeypatch.setattr(peers, "TAKE", "/internal/not-yet")
    api = await fleet.api()
    operation = await fleet.prompt(api, await fleet.session(), "echo: as before")
    assert await fleet.settled(operation) == ["completed"]


async def test_who_is_gone_is_not_waited_for(fleet: Fleet) -> None:
    gone, api = await fleet.worker(), await fleet.api()
    await fleet.prompt(api, await fleet.session(), "echo: known")
    await gone._server.close()
    stays = await fleet.worker()
    operations = await asyncio.gather(
        *[fleet.prompt(api, await fleet.session(), f"echo: {n}") for n in range(10)]
    )
    assert set(await fleet.settled(*operations)) == {"completed"}
    assert stays.host_id != gone.host_id


async def test_another_tenants_session_is_not_there(fleet: Fleet) -> None:
    worker = await fleet.worker()
    session = await fleet.session()
    stranger = await fleet.new_tenant()
    command = Accept(lane="main", request=PromptRequest(prompt="echo: x"))
    with pytest.raises(SessionNotFound):
        await worker.take(stranger, session, command, BACKGROUND, until=LATER)
    assert worker.slots.used == 0


async def _take(fleet: Fleet, worker: SessionHost, session: str) -> None:
    command = Accept(lane="main", request=PromptRequest(prompt="echo: taken"))
    reply = await worker.take(fleet.tenant, session, command, BACKGROUND, until=LATER)
    assert isinstance(reply, Ok)
