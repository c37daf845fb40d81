"""Commands under a key: done once, whoever dies, comes twice or comes late."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from harness.context import Context
from harness.errors import NoActiveRun, StorageError
from harness.messages import UserMessage
from harness.runtime.harness import AgentHarness
from harness.usage import Usage
from storage_pg import idempotency
from storage_pg.idempotency import Attempt, IdempotencyKey, attempt
from storage_pg.reads import Row
from storage_pg.storage import Pool
from tests.workers.kit import Fleet
from tests.workers.test_commands import GATED
from tests.workers.tools import GATES
from workers import live
from workers.commands import (
    AppendCustom,
    AppendMessage,
    Command,
    CreateLane,
    FollowUp,
    NextRun,
    RecordUsage,
    Reply,
    RequestInProgress,
    RequestKey,
    Steer,
    decode_command,
    encode_command,
)
from workers.execute import Surroundings, execute
from workers.routing import OutcomeUnknown


async def begin(fleet: Fleet, key: str) -> RequestKey:
    """A new attempt under a key."""
    host = fleet.hosts[0]
    asked = IdempotencyKey(key, "body")
    found = await attempt(host.pool, fleet.tenant, asked, host.environment.clock.now_ms())
    assert isinstance(found, Attempt)
    return RequestKey(key=key, attempt=found.number)


def commands(request: RequestKey | None) -> list[Command]:
    """Every command that makes something."""
    message = UserMessage(content="appended", timestamp=1)
    return [
        Steer(lane="main", message="steered", request=request),
        FollowUp(lane="main", message="followed", request=request),
        NextRun(lane="main", message="next", request=request),
        AppendMessage(lane="main", message=message, request=request),
        AppendCustom(lane="main", custom_type="mark", request=request),
        RecordUsage(lane="main", usage=Usage(input=1), request=request),
        CreateLane(name="side", request=request),
    ]


def made(command: Command, answer: Any) -> str:
    """The id in a command's answer."""
    if isinstance(command, CreateLane):
        return answer["lane"]
    return answer["id"] if isinstance(command, RecordUsage) else answer["entryId"]


async def test_a_key_travels_with_its_command() -> None:
    for command in commands(RequestKey(key="ü", attempt=3)):
        assert decode_command(encode_command(command)) == command
    for command in commands(None):
        assert b"request" not in encode_command(command)


@pytest.mark.parametrize("number", range(7), ids=lambda i: type(commands(None)[i]).__name__)
async def test_at_once_through_several_processes(fleet: Fleet, number: int) -> None:
    await fleet.worker()
    apis = [await fleet.api(), await fleet.api()]
    session = await fleet.session()
    run = await fleet.prompt(apis[0], session, GATED)
    await GATES["g"].entered.wait()
    command = commands(await begin(fleet, "at once"))[number]
    answers = await asyncio.gather(
        *(fleet.ok(host, session, command) for host in fleet.hosts for _ in range(4))
    )
    first = {made(command, answer) for answer in answers}
    assert len(first) == 1
    GATES["g"].release.set()
    assert await fleet.settled(run) == ["completed"]
    assert {made(command, await fleet.ok(apis[1], session, command))} == first
    noted = await fleet.sql("SELECT status, response FROM laneway.idempotency_keys")
    assert noted == [(0, first.pop())]
    texts = await fleet.texts(session)
    assert len([text for text in texts if "steered" in text]) == int(number == 0)
    assert len([text for text in texts if "followed" in text]) == int(number == 1)
    assert len([text for text in texts if "appended" in text]) == int(number == 3)
    assert len([text for text in texts if "mark" in text]) == int(number == 4)
    rows = await fleet.sql("SELECT count(*) FROM laneway.usage_ledger WHERE adjustment")
    assert rows == [(int(number == 5),)]


@pytest.mark.parametrize("here", [True, False], ids=["at the owner", "from another host"])
async def test_a_key_that_cannot_be_looked_up_stops_nothing_that_runs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    owner, api = await fleet.worker(), await fleet.api()
    session = await fleet.session()
    run = await fleet.prompt(owner, session, GATED)
    await GATES["g"].entered.wait()
    fetch, failures = idempotency.fetch_from, 0

    async def failing(pool: Pool, query: str, parameters: Sequence[object]) -> list[Row]:
        nonlocal failures
        if query == "key_standing" and failures < 2:
            failures += 1
            raise StorageError("no connection is free")
        return await fetch(pool, query, parameters)

    monkeypatch.setattr(idempotency, "fetch_from", failing)
    for command in (
        commands(await begin(fleet, "unread"))[2],
        CreateLane(name="side", request=await begin(fleet, "unread too")),
    ):
        failures = 0
        await fleet.ok(owner if here else api, session, command)
        assert failures == 2
    GATES["g"].release.set()
    assert await fleet.settled(run) == ["completed"]
    assert (GATES["g"].starts, GATES["g"].ends) == (1, 1)


@pytest.mark.parametrize("keyed", [True, False])
async def test_an_owner_that_dies_before_its_answer(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, keyed: bool
) -> None:
    owner = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    run = await fleet.prompt(api, session, GATED)
    await GATES["g"].entered.wait()
    await fleet.worker()
    asked = Steer(
        lane="main", message="steered", request=await begin(fleet, "dying") if keyed else None
    )
    died: list[Reply] = []

    async def dying(
        harness: AgentHarness, command: Command, surroundings: Surroundings, context: Context
    ) -> Reply:
        reply = await execute(harness, command, surroundings, context)
        if command == asked and not died:
            died.append(reply)
            await fleet.kill(owner)
            await asyncio.Event().wait()
        return reply

    monkeypatch.setattr(live, "execute", dying)
    if keyed:
        answer = await fleet.ok(api, session, asked)
        assert [(0, answer["entryId"])] == await fleet.sql(
            "SELECT status, response FROM laneway.idempotency_keys"
        )
    else:
        with pytest.raises(OutcomeUnknown):
            await fleet.ok(api, session, asked)
    GATES["g"].release.set()
    assert await fleet.settled(run) == ["completed"]
    assert len([text for text in await fleet.texts(session) if "steered" in text]) == 1


async def test_a_refusal_holds_for_every_request_before_it(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    late = await begin(fleet, "late")
    told = Steer(lane="main", message="steered", request=await begin(fleet, "late"))
    assert isinstance(await fleet.refused(api, session, told), NoActiveRun)
    await fleet.worker()
    run = await fleet.prompt(api, session, GATED)
    await GATES["g"].entered.wait()
    # The first request was on its way all the time; who asked was told no by now.
    delayed = Steer(lane="main", message="steered", request=late)
    assert isinstance(await fleet.refused(api, session, delayed), RequestInProgress)
    again = Steer(lane="main", message="steered", request=await begin(fleet, "late"))
    answer = await fleet.ok(api, session, again)
    assert await fleet.ok(api, session, delayed) == answer
    GATES["g"].release.set()
    assert await fleet.settled(run) == ["completed"]
    assert len([text for text in await fleet.texts(session) if "steered" in text]) == 1
