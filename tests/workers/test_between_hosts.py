"""Whatever goes wrong between two hosts, nothing is done twice, refused and done, or lost to a caller who could have been served."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from harness.context import BACKGROUND
from harness.errors import SessionNotFound, StorageError
from harness.runtime.requests import PromptRequest
from storage_pg.open_operations import Whereabouts
from tests.workers.kit import Fleet, eventually, watching
from tests.workers.test_ownership import gated
from tests.workers.test_taking import offers
from tests.workers.tools import GATES
from workers import peers, routing
from workers.commands import Accept, SetName, Steer
from workers.routing import OutcomeUnknown

Handler = Callable[[web.Request], Awaitable[web.Response]]


@contextmanager
def nowhere() -> Generator[str]:
    """An address at which nobody answers, not even with a refusal: its line is full."""
    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(door.getsockname())
        yield f"http://127.0.0.1:{door.getsockname()[1]}"


@asynccontextmanager
async def between(handler: Handler) -> AsyncGenerator[str]:
    """Somebody who answers in a host's place."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def giving_up(target: list[str]) -> Handler:
    """A gateway that passes requests on, and answers before the host does."""

    async def handler(request: web.Request) -> web.Response:
        headers = {k: v for k, v in request.headers.items() if k.lower().startswith("x-")}
        async with aiohttp.ClientSession() as session:
            url = target[0] + request.path
            async with session.post(url, data=await request.read(), headers=headers) as answer:
                await answer.read()
        return web.Response(status=504)

    return handler


async def steered(fleet: Fleet, session: str) -> int:
    texts = await fleet.texts(session)
    return sum("STEERED" in text and '"role":"user"' in text for text in texts)


async def test_workers_that_cannot_be_reached_cost_a_prompt_one_wait(fleet: Fleet) -> None:
    with ExitStack() as stack:
        for _ in range(3):
            await fleet.worker(host_url=stack.enter_context(nowhere()))
        api = await fleet.api(command_seconds=5)
        operation = await fleet.prompt(api, await fleet.session(), "echo: x")
        assert offers(api) == {"no_answer": 1}
        assert await fleet.settled(operation) == ["completed"]


async def test_a_worker_with_another_secret_is_passed_over(fleet: Fleet) -> None:
    await fleet.worker(cluster_secret="the new one of a rotation, of which others do not know")
    api = await fleet.api()
    operations = [await fleet.prompt(api, await fleet.session(), "echo: x") for _ in range(2)]
    assert offers(api) == {"refused": 1}
    assert await fleet.settled(*operations) == ["completed"] * 2


@pytest.mark.parametrize("status", [403, 502])
async def test_a_stranger_that_answers_for_a_worker_is_passed_over(
    fleet: Fleet, status: int
) -> None:
    async def handler(_request: web.Request) -> web.Response:
        return web.Response(status=status)

    async with between(handler) as url:
        await fleet.worker(host_url=url)
        api = await fleet.api()
        operation = await fleet.prompt(api, await fleet.session(), "echo: x")
        assert await fleet.settled(operation) == ["completed"]


async def test_a_gateway_that_gives_up_has_nothing_done_twice(fleet: Fleet) -> None:
    target: list[str] = []
    async with between(giving_up(target)) as url:
        worker = await fleet.worker(host_url=url)
        target.append(f"http://127.0.0.1:{worker._server.port}")
        api = await fleet.api(command_seconds=5)
        session = await fleet.session()
        run = await fleet.prompt(worker, session, gated("gateway"))
        await GATES["gateway"].entered.wait()
        with pytest.raises(OutcomeUnknown):
            await fleet.run(api, session, Steer(lane="main", message="STEERED"))
        GATES["gateway"].release.set()
        assert await fleet.settled(run) == ["completed"]
        assert await steered(fleet, session) == 1


async def test_a_defect_at_the_owner_has_nothing_done_twice(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, api = await fleet.worker(), await fleet.api(command_seconds=5)
    session = await fleet.session()
    run = await fleet.prompt(worker, session, gated("defect"))
    await GATES["defect"].entered.wait()
    (live,) = worker.registry.all()
    execute = live.execute

    async def broken(*arguments: Any) -> Any:
        await execute(*arguments)
        raise RuntimeError("after it was done")

    monkeypatch.setattr(live, "execute", broken)
    with pytest.raises(OutcomeUnknown):
        await fleet.run(api, session, Steer(lane="main", message="STEERED"))
    GATES["defect"].release.set()
    assert await fleet.settled(run) == ["completed"]
    assert await steered(fleet, session) == 1


async def test_no_news_of_the_owner_is_no_reason_to_stop_listening_to_it(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, api = await fleet.worker(), await fleet.api()
    session = await fleet.session()
    run = await fleet.prompt(worker, session, gated("news"))
    await GATES["news"].entered.wait()
    (live,) = worker.registry.all()
    execute, look = live.execute, routing.whereabouts
    looks, asked_again = 0, asyncio.Event()

    async def slow(*arguments: Any) -> Any:
        await asked_again.wait()
        return await execute(*arguments)

    async def failing(*arguments: Any) -> Whereabouts | None:
        nonlocal looks
        looks += 1
        if looks > 1:
            asked_again.set()
            raise StorageError("the database refused a read")
        return await look(*arguments)

    monkeypatch.setattr(live, "execute", slow)
    monkeypatch.setattr(routing, "whereabouts", failing)
    await fleet.ok(api, session, Steer(lane="main", message="STEERED"))
    GATES["news"].release.set()
    assert await fleet.settled(run) == ["completed"]
    assert await steered(fleet, session) == 1


async def test_what_was_offered_is_not_accepted_when_nobody_waits_for_it_any_more(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, owner, api = await fleet.worker(), await fleet.worker(), await fleet.api()
    session = await fleet.session()
    first = await fleet.prompt(owner, session, gated("first"))
    await GATES["first"].entered.wait()
    thaw, claim = asyncio.Event(), slow.registry._open

    async def late(*arguments: Any) -> Any:
        await thaw.wait()
        return await claim(*arguments)

    monkeypatch.setattr(slow.registry, "_open", late)
    placement = api._router._placement
    assert placement is not None
    await placement.choose(session)
    (known,) = [each for each in placement._known if each.host_id == slow.host_id]
    placement.took(known, session)
    second = Accept(lane="main", request=PromptRequest(prompt="echo: SECOND"))
    # Busy it is, but that is not the whole truth: whoever was asked first may accept it yet.
    with pytest.raises(OutcomeUnknown):
        await fleet.run(api, session, second)
    GATES["first"].release.set()
    assert await fleet.settled(first) == ["completed"]
    await eventually(lambda: owner.registry.all() == [])
    before = await fleet.texts(session)
    thaw.set()
    await eventually(lambda: not slow.registry.busy)
    assert slow.slots.used == 0
    assert await fleet.texts(session) == before


async def test_a_strangers_command_hides_no_session_from_its_tenant(fleet: Fleet) -> None:
    api = await fleet.api()
    session, stranger = await fleet.session(), await fleet.new_tenant()
    command = SetName(name="x")
    theirs = asyncio.ensure_future(api.execute(stranger, session, command, BACKGROUND))
    await fleet.ok(api, session, command)
    with pytest.raises(SessionNotFound):
        await theirs


async def test_streams_take_no_connection_that_a_command_needs(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "_MOST_CONNECTIONS", 2)
    worker, api = await fleet.worker(), await fleet.api(command_seconds=5)
    session = await fleet.session()
    run = await fleet.prompt(worker, session, gated("watched"))
    await GATES["watched"].entered.wait()
    async with contextlib.AsyncExitStack() as stack:
        screens = [
            await stack.enter_async_context(watching(api, fleet.tenant, session)) for _ in range(6)
        ]
        await eventually(lambda: all(screen.snapshots for screen in screens))
        operation = await fleet.prompt(api, await fleet.session(), "echo: x")
        assert offers(api) == {"taken": 1}
        GATES["watched"].release.set()
        assert await fleet.settled(run, operation) == ["completed"] * 2
