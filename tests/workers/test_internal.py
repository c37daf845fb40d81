"""The endpoint between hosts: signed both ways, bounded, and honest about what it does not own."""

from __future__ import annotations

import asyncio
import socket

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.result import Ok
from storage_pg.lease import HostLease
from storage_pg.open_operations import SessionOwner
from tests.workers.kit import SECRET, Fleet
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import Inspect, Steer
from workers.host import SessionHost
from workers.internal_auth import ClusterSecret
from workers.internal_http import (
    EXECUTE,
    WATCH,
    decode_item,
    encode_execution,
    encode_item,
)
from workers.peers import NotThere, PeerRefused, Peers
from workers.routing import OutcomeUnknown
from workers.watching import EndItem, EventItem, SnapshotItem

INSPECT = Inspect(lane="main")


class FixedClock(SystemClock):
    """A clock some way off."""

    def __init__(self, offset_ms: int) -> None:
        self._offset = offset_ms

    def now_ms(self) -> int:
        return super().now_ms() + self._offset


async def post(
    host: SessionHost, path: str, body: bytes, headers: dict[str, str]
) -> httpx.Response:
    url = f"http://127.0.0.1:{host._server.port}{path}"
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.post(url, content=body, headers=headers)


async def test_only_hosts_of_this_deployment_are_answered(fleet: Fleet) -> None:
    host = await fleet.worker()
    session = await fleet.session()
    body = encode_execution(fleet.tenant, session, INSPECT)
    assert host.host_id is not None
    right = ClusterSecret(SECRET, SystemClock())
    good = right.sign(EXECUTE, host.host_id, body)
    assert (await post(host, EXECUTE, body, good)).status_code == 409  # signed; not owned
    refused = [
        {},
        ClusterSecret("another secret, just as long", SystemClock()).sign(
            EXECUTE, host.host_id, body
        ),
        ClusterSecret(SECRET, FixedClock(-3_600_000)).sign(EXECUTE, host.host_id, body),
        ClusterSecret(SECRET, FixedClock(3_600_000)).sign(EXECUTE, host.host_id, body),
        right.sign(EXECUTE, host.host_id, body + b" "),
        right.sign(WATCH, host.host_id, body),
        {**good, "x-laneway-time": "9" * 40},
        {**good, "x-laneway-host": host.environment.ids.next()},
        {**good, "x-laneway-signature": "\xff"},
    ]
    for headers in refused:
        raw = {name: value.encode("latin-1") for name, value in headers.items()}
        answer = await post(host, EXECUTE, body, raw)  # pyright: ignore[reportArgumentType]
        assert answer.status_code == 403, headers
        assert not answer.content


async def test_requests_are_bounded_and_checked(fleet: Fleet) -> None:
    host = await fleet.worker(internal_max_bytes=10_000)
    right = ClusterSecret(SECRET, SystemClock())
    assert host.host_id is not None

    async def status(path: str, body: bytes, host_id: str) -> int:
        return (await post(host, path, body, right.sign(path, host_id, body))).status_code

    assert await status(EXECUTE, b"x" * 10_001, host.host_id) == 413
    assert await status(EXECUTE, b"nonsense", host.host_id) == 422
    assert await status(EXECUTE, b"a\nb\n{}", host.host_id) == 422
    assert await status(WATCH, b"[]", host.host_id) == 422
    assert await status("/internal/other", b"", host.host_id) == 405
    # Meant for the incarnation before this one.
    assert await status(EXECUTE, b"", host.environment.ids.next()) == 421


async def test_a_host_with_another_secret_is_told_so(fleet: Fleet) -> None:
    worker = await fleet.worker()
    odd = await fleet.api(cluster_secret="another secret, just as long")
    session = await fleet.session()
    operation = await fleet.prompt(worker, session, gated("g"))
    await GATES["g"].entered.wait()
    with pytest.raises(PeerRefused):
        await fleet.run(odd, session, Steer(lane="main", message="x"))
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_stranger_at_a_hosts_address_is_not_believed(fleet: Fleet) -> None:
    """Somebody answers 200 with a plausible body, and cannot prove that it knows the secret."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]

        def answer() -> None:
            line, _ = door.accept()
            with line:
                line.recv(65_536)
                line.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n+null")

        answering = asyncio.get_running_loop().run_in_executor(None, answer)
        peers = Peers(ClusterSecret(SECRET, SystemClock()), 5)
        owner = SessionOwner(
            "01900000-0000-7000-8000-000000000009", "worker", f"http://127.0.0.1:{port}"
        )
        found = await peers.execute(owner, fleet.tenant, owner.host_id, INSPECT, BACKGROUND)
        await answering
        await peers.close()
    assert isinstance(found, NotThere)


async def test_an_owner_that_is_gone_is_replaced(fleet: Fleet) -> None:
    worker = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, gated("g", "gated_safe"))
    await GATES["g"].entered.wait()
    # The owner's endpoint is dead before its lease is; then the lease goes too.
    await worker._server.close()
    steering = fleet.run(api, session, Steer(lane="main", message="x"))
    await fleet.worker()
    await fleet.kill(worker)
    assert isinstance(await steering, Ok)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_frozen_owner_is_not_waited_for_once_it_is_cut_off(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, gated("g", "gated_safe"))
    await GATES["g"].entered.wait()
    thaw = asyncio.Event()
    answer = frozen._server._answer

    async def stuck(request: Request) -> Response:
        await thaw.wait()
        return await answer(request)

    monkeypatch.setattr(frozen._server, "_answer", stuck)
    asking = asyncio.ensure_future(fleet.ok(api, session, Inspect(lane="main")))
    await fleet.worker()
    await fleet.kill(frozen)
    assert (await asking)["current"]["id"] == operation
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    thaw.set()


async def test_a_steer_whose_owner_died_in_the_middle_is_reported_as_unknown(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, gated("g"))
    await GATES["g"].entered.wait()

    async def broken(*_arguments: object) -> NotThere:
        return NotThere("the connection broke", unknown=True)

    with monkeypatch.context() as patched:
        patched.setattr(api._peers, "execute", broken)
        with pytest.raises(OutcomeUnknown):
            await fleet.run(api, session, Steer(lane="main", message="x"))
    assert isinstance(worker.lease, HostLease)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


def test_items_travel_as_they_are() -> None:
    for item in (
        SnapshotItem(b'{"a":"\\n \\ud800"}'),
        EventItem("run_end", b'{"type":"run_end"}'),
        EndItem("released", 12),
        EndItem("fault"),
    ):
        line = encode_item(item)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert decode_item(line[:-1]) == item
    assert decode_item(b"H") is None
    for wrong in (b"", b"?", b"Xnonsense 3", b"Xreleased x"):
        with pytest.raises(ValueError, match=r"\S"):
            decode_item(wrong)
