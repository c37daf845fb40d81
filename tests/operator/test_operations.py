"""Operations of any tenant: listed, explained, woken, aborted, swept, from the command line."""

from __future__ import annotations

import json

from tests.operator.kit import command
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.test_wakes import FAILING
from tests.workers.tools import GATES

ENDLESS = "script: " + json.dumps([{"text": "a b c d e f g h i j", "delay": 600}])


async def listed(fleet: Fleet, *options: str) -> list[str]:
    said = await command(fleet.database, "operation", "list", "--json", *options)
    assert said.status == 0, said.errors
    return [document["id"] for document in said.documents]


async def test_open_operations_of_all_tenants_are_listed(fleet: Fleet) -> None:
    api = await fleet.api()
    worker = await fleet.host("worker", jobs=False, retry_base_ms=60_000)
    other = await fleet.new_tenant()
    driven = await fleet.prompt(worker, await fleet.session(), gated("g"))
    await GATES["g"].entered.wait()
    waiting = await fleet.prompt_of(other, api, await fleet.session_of(other), "echo: x")
    later = await fleet.prompt(worker, await fleet.session(), FAILING)

    async def scheduled() -> bool:
        return await listed(fleet, "--state", "scheduled") == [later]

    await eventually(scheduled)
    assert await listed(fleet, "--state", "driven") == [driven]
    assert await listed(fleet, "--state", "waiting") == [waiting]
    assert await listed(fleet, "--tenant", other) == [waiting]
    assert waiting not in await listed(fleet, "--tenant", "t")
    assert (await listed(fleet))[0] == driven
    assert await listed(fleet, "--limit", "1") == [driven]
    assert await listed(fleet, "--older-than", "1h") == []
    await fleet.sql("UPDATE laneway.open_operations SET accepted_at = accepted_at - 7200000")
    assert driven in await listed(fleet, "--older-than", "1h")
    shown = await command(fleet.database, "operation", "list")
    assert driven in shown.text
    GATES["g"].release.set()


async def test_one_operation_is_explained(fleet: Fleet) -> None:
    worker = await fleet.worker(host_name="driver")
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, gated("g"))
    await GATES["g"].entered.wait()
    [seen] = (await command(fleet.database, "operation", "show", operation, "--json")).documents
    assert (seen["state"], seen["host"], seen["sessionId"]) == ("driven", "driver", session)
    assert (seen["tenant"], seen["lane"], seen["kind"]) == ("t", "main", "run")
    text = (await command(fleet.database, "operation", "show", operation.upper())).text
    assert operation in text
    assert "since" in text
    GATES["g"].release.set()
    await fleet.settled(operation)
    [seen] = (await command(fleet.database, "operation", "show", operation, "--json")).documents
    assert (seen["state"], seen["outcome"], seen["due"]) == ("done", "completed", None)


async def test_what_is_not_there_is_said_in_a_sentence(fleet: Fleet) -> None:
    worker = await fleet.worker()
    done = await fleet.prompt(worker, await fleet.session(), "echo: x")
    await fleet.settled(done)
    for verb in ("show", "wake", "abort"):
        for unknown in ("nonsense", worker.environment.ids.next()):
            said = await command(fleet.database, "operation", verb, unknown)
            assert (said.status, "there is no operation" in said.errors) == (1, True)
    for verb in ("wake", "abort"):
        said = await command(fleet.database, "operation", verb, done)
        assert (said.status, "is over: completed" in said.errors) == (1, True)
    said = await command(fleet.database, "operation", "list", "--older-than", "soon")
    assert (said.status, "as in 10m" in said.errors) == (1, True)
    said = await command(fleet.database, "operation", "list", "--tenant", "nobody")
    assert (said.status, "no tenant 'nobody'" in said.errors) == (1, True)


async def test_an_abort_reaches_whoever_drives(fleet: Fleet) -> None:
    worker = await fleet.worker()
    operation = await fleet.prompt(worker, await fleet.session(), ENDLESS)
    await eventually(lambda: worker.registry.driving == 1)
    said = await command(fleet.database, "operation", "abort", operation, "--json")
    assert said.status == 0, said.errors
    assert said.documents[0]["id"] == operation
    assert await fleet.settled(operation) == ["aborted"]


async def test_an_abort_of_what_nobody_drives_yet(fleet: Fleet) -> None:
    api = await fleet.api()
    operation = await fleet.prompt(api, await fleet.session(), "echo: x")
    assert (await command(fleet.database, "operation", "abort", operation)).status == 0
    await fleet.worker()
    assert await fleet.settled(operation) == ["aborted"]


async def test_another_secret_is_refused_in_a_sentence(fleet: Fleet) -> None:
    worker = await fleet.worker()
    operation = await fleet.prompt(worker, await fleet.session(), gated("g"))
    await GATES["g"].entered.wait()
    said = await command(
        fleet.database,
        "operation",
        "abort",
        operation,
        LANEWAY_CLUSTER_SECRET="another secret of somebody",
    )
    assert (said.status, "LANEWAY_CLUSTER_SECRET differs" in said.errors) == (1, True)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_wake_dispatches_what_was_forgotten(fleet: Fleet) -> None:
    api = await fleet.api()
    operation = await fleet.prompt(api, await fleet.session(), "echo: x")
    # Its job is lost, and by this row it is not made again for a long time.
    await eventually(lambda: api.dispatcher.counts.jobs == 1)
    await fleet.sql("DELETE FROM public.procrastinate_jobs")
    await fleet.sql("UPDATE laneway.open_operations SET dispatched_at = dispatched_at + 86400000")
    await fleet.worker()
    said = await command(fleet.database, "operation", "wake", operation, "--json")
    assert said.documents == [{"id": operation, "woken": True}]
    assert await fleet.settled(operation) == ["completed"]


async def test_a_sweep_is_shown_before_it_is_done(fleet: Fleet) -> None:
    api = await fleet.api()
    assert (await command(fleet.database, "sweep", "--json")).documents == []
    operation = await fleet.prompt(api, await fleet.session(), "echo: x")
    await fleet.sql("DELETE FROM laneway.open_operations")
    [lost] = (await command(fleet.database, "operation", "show", operation, "--json")).documents
    assert lost["state"] == "lost"
    for _ in range(2):
        [dry] = (await command(fleet.database, "sweep", "--dry-run", "--json")).documents
        assert (dry["operationId"], dry["difference"], dry["repaired"]) == (
            operation,
            "missing",
            False,
        )
    [done] = (await command(fleet.database, "sweep", "--json")).documents
    assert done["repaired"]
    assert "nothing differs" in (await command(fleet.database, "sweep", "--dry-run")).text
    await fleet.worker()
    assert await fleet.settled(operation) == ["completed"]
