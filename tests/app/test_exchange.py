"""Sessions exported and imported over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import AsyncIterator

import httpx
import pytest

from harness.context import BACKGROUND
from harness.environment import Environment
from harness.models.registry import ModelRegistry
from harness.models.script import say
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.runtime.requests import PromptRequest
from harness.session.repo import CreateOptions
from harness.session.repo_memory import MemorySessions
from harness.session.transfer import open_export
from tests.app.copying import GOLDEN, JSONL, copying, exported, spools, take, talked
from tests.app.kit import Tenant, running_api, settings_for, until
from tests.app.routes import empty_session
from tests.app.test_operations import new_id

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_an_export_says_how_much_it_is(tenant: Tenant):
    session = await talked(tenant)
    answer = await tenant.client.get(f"/v1/sessions/{session}/export")
    header, _, body = answer.content.partition(b"\n")
    assert answer.headers["content-type"].partition(";")[0] == "application/jsonl"
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert f"{session}.jsonl" in answer.headers["content-disposition"]
    head = json.loads(header)
    assert (head["v"], head["id"], head["metadata"]) == (4, session, {"team": "red"})
    assert head["export"] == {
        "records": body.count(b"\n"),
        "sha256": hashlib.sha256(body).hexdigest(),
    }


async def test_a_reader_who_leaves_leaves_nothing_behind(tenant: Tenant):
    world = tenant.world
    session = await tenant.session()
    text = "é" * 500_000
    for _ in range(8):
        made = await tenant.client.post(
            f"/v1/sessions/{session}/lanes/main/entries",
            json={"type": "custom", "customType": "large", "data": text},
        )
        assert made.status_code == 201
    # By hand: the client that checks answers would read to the end.
    headers = {"Authorization": f"Bearer {tenant.key}"}
    async with (
        httpx.AsyncClient(base_url=world.apis[0].url, headers=headers) as client,
        client.stream("GET", f"/v1/sessions/{session}/export") as answer,
    ):
        assert answer.status_code == 200
        assert await anext(aiter(answer.aiter_raw(1_000)))
        assert spools()
        assert copying(world) == 0
    await until(lambda: not spools())
    # The next one has the whole way free.
    assert len(await exported(tenant, session)) > 8 * len(text)
    await until(lambda: not spools())


# Imports


async def test_an_export_becomes_the_same_session_again(tenant: Tenant):
    session = await tenant.session(metadata={"a": [1, None]})
    await tenant.run(session, 'tool: {"name": "foreign"}')
    data, entries = await exported(tenant, session), await tenant.entries(session)
    usage = (await tenant.client.get(f"/v1/sessions/{session}/usage")).json()
    assert (await tenant.client.delete(f"/v1/sessions/{session}")).status_code == 204
    answer = await take(tenant, data, agent="helper")
    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert answer.headers["location"] == f"/v1/sessions/{session}"
    assert (made["session"]["id"], made["session"]["agent"]) == (session, "helper")
    assert made["session"]["metadata"] == {"a": [1, None]}
    assert made["summary"] == json.loads(data.partition(b"\n")[0])["export"]
    assert await tenant.entries(session) == entries
    assert (await tenant.client.get(f"/v1/sessions/{session}/usage")).json() == usage
    assert await exported(tenant, session) == data
    assert (await tenant.run(session, "echo: on"))["outcome"] == "completed"


async def test_tenants_may_hold_the_same_entries_and_see_only_their_own(tenant: Tenant):
    session, stranger = await talked(tenant), await tenant.world.tenant()
    data, entries = await exported(tenant, session), await tenant.entries(session)
    answer = await take(stranger, data, id=new_id())
    theirs = answer.json()["session"]["id"]
    again = (await take(tenant, data, id=new_id())).json()["session"]["id"]
    assert await stranger.entries(theirs) == await tenant.entries(again) == entries
    await stranger.run(theirs, "echo: only here")
    for session_id in (session, again):
        assert await tenant.entries(session_id) == entries
        assert (await stranger.client.get(f"/v1/sessions/{session_id}")).status_code == 404
    assert (await tenant.client.delete(f"/v1/sessions/{again}")).status_code == 204
    assert len(await stranger.entries(theirs)) == len(entries) + 2


async def test_an_id_that_is_taken_stays_what_it_is(tenant: Tenant):
    session, stranger = await talked(tenant), await tenant.world.tenant()
    data, before = await exported(tenant, session), await tenant.entries(session)
    refusals = [await take(tenant, data), await take(stranger, data)]
    refusals += [await take(stranger, empty_session(), id=session)]
    for answer in refusals:
        assert (answer.status_code, answer.json()["code"]) == (409, "SessionExists")
        assert "talk" not in answer.text
        assert session not in answer.text
    assert await tenant.entries(session) == before
    assert (await stranger.client.get("/v1/sessions")).json()["data"] == []


async def test_one_key_imports_once(tenant: Tenant):
    data = empty_session()
    first = await take(tenant, data, "import 1")
    again = await take(tenant, data, "import 1")
    assert (first.status_code, again.status_code) == (201, 201)
    assert (again.text, again.headers["location"]) == (first.text, first.headers["location"])
    assert again.headers["idempotency-replayed"] == "true"
    other = await take(tenant, empty_session(), "import 1")
    assert (other.status_code, other.json()["code"]) == (409, "IdempotencyKeyReused")
    # At once: one makes it, and the other hears so or is told to come again.
    data = empty_session()
    answers = await asyncio.gather(*(take(tenant, data, "import 2") for _ in range(4)))
    assert {a.status_code for a in answers} <= {201, 409}
    assert {a.json()["code"] for a in answers if a.status_code == 409} <= {"RequestInProgress"}
    made = {a.text for a in answers if a.status_code == 201}
    assert len(made) == 1
    assert len((await tenant.client.get("/v1/sessions")).json()["data"]) == 2


def damages(data: bytes) -> dict[str, bytes]:
    lines = data.splitlines(keepends=True)
    body = b"".join(lines[1:])
    plain = json.loads(lines[0])
    del plain["export"]
    bare = json.dumps(plain).encode() + b"\n"
    entry = next(n for n, line in enumerate(lines) if b'"kind":"entry"' in line)
    deep = b'{"kind":"value","op":"set","seq":999,"namespace":"a","key":"","value":'
    deep += b"[" * 100_000 + b"]" * 100_000 + b"}\n"
    odd = {**plain, "metadata": {"big": "x" * 20_000}}
    return {
        "empty": b"",
        "no session": b"hello\n",
        "JSON of another kind": b"[1, 2]\n",
        "torn header": lines[0][:40],
        "torn": data[:-10],
        "last line missing": b"".join(lines[:-1]),
        "line twice": data + lines[-1],
        "flipped": data.replace(b"one", b"on3", 1),
        "no UTF-8": bare + body.replace(b"one", b"\xff\xfe\xfd", 1),
        "parent missing": bare + b"".join(lines[1:entry] + lines[entry + 1 :]),
        "deep": bare + body + deep,
        "deep header": b'{"v":4,"metadata":' + b"[" * 100_000,
        "no JSON in the middle": bare + lines[1] + b"{nonsense\n" + body,
        "unknown record": bare + lines[1] + b'{"kind":"mystery","seq":999}\n',
        "metadata too large": json.dumps(odd).encode() + b"\n" + body,
        "no time": json.dumps({**plain, "createdAt": -5}).encode() + b"\n" + body,
        "no id": json.dumps({**plain, "id": "../../etc"}).encode() + b"\n" + body,
        "newer": json.dumps({**plain, "storageVersion": 99}).encode() + b"\n" + body,
        "newer format": json.dumps({**plain, "v": 5}).encode() + b"\n" + body,
        "configuration of another shape": bare
        + body
        + b'{"kind":"value","op":"set","seq":9999,"namespace":"pi.lane.config","key":"x","value":5}\n',
        "operation of no lane": bare
        + body
        + b'{"kind":"value","op":"set","seq":9999,"namespace":"pi.op.state","key":"x","value":{}}\n',
    }


LINED = ("no UTF-8", "parent missing", "no JSON in the middle", "unknown record")


async def test_a_file_that_cannot_be_a_session_makes_none(tenant: Tenant):
    session = await talked(tenant)
    data = await exported(tenant, session)
    assert (await tenant.client.delete(f"/v1/sessions/{session}")).status_code == 204
    for what, damaged in damages(data).items():
        answer = await take(tenant, damaged)
        problem = answer.json()
        assert answer.status_code == 422, (what, answer.text)
        assert problem["code"] in (
            "InvalidSessionFile",
            "TransferDamaged",
            "NewerVersion",
            "InvalidRequest",
        )
        assert tempfile.gettempdir() not in problem["detail"]
        if what in LINED:
            assert re.search(r"line \d+ at byte \d+", problem["detail"]), (what, problem)
        assert (await tenant.client.get("/v1/sessions")).json()["data"] == [], what
    assert spools() == []
    assert copying(tenant.world) == 0
    assert (await take(tenant, data)).status_code == 201


async def test_a_file_over_the_limit_is_refused_announced_or_not(tenant: Tenant):
    data = await exported(tenant, await talked(tenant))
    settings = settings_for(tenant.world.database, import_max_bytes=len(data) - 1)
    headers = {**JSONL, "Authorization": f"Bearer {tenant.key}"}

    async def unannounced() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 1_000):
            yield data[start : start + 1_000]

    async with running_api(settings) as api, httpx.AsyncClient(base_url=api.url) as client:
        for content in (data, unannounced()):
            answer = await client.post("/v1/sessions/import", content=content, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (413, "BodyTooLarge")
            assert answer.json()["limit"] == len(data) - 1
    # Far more than other bodies may have is fine where it is a session's.
    assert (await take(tenant, data, id=new_id())).status_code == 201
    assert spools() == []


async def test_a_sender_who_breaks_off_leaves_nothing_behind(tenant: Tenant):
    url = httpx.URL(tenant.world.apis[0].url)
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(
        f"POST /v1/sessions/import HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tenant.key}\r\n"
        "Content-Type: application/jsonl\r\nContent-Length: 100000\r\n\r\n".encode()
        + empty_session()
    )
    await writer.drain()
    await until(lambda: len(spools()) == 1)
    writer.transport.abort()
    await until(lambda: not spools())
    assert (await tenant.client.get("/v1/sessions")).json()["data"] == []


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/x-ndjson", 201),
        ("application/octet-stream", 201),
        ("Application/JSONL; charset=utf-8", 201),
        ("application/json", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
async def test_a_file_says_what_it_is(tenant: Tenant, kind: str, status: int):
    answer = await tenant.client.post(
        "/v1/sessions/import", content=empty_session(), headers={"Content-Type": kind}
    )
    assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    "query", [{"id": "x"}, {"id": str(10**20)}, {"operations": "drop"}, {"agent": "\0"}]
)
async def test_an_import_that_makes_no_sense_is_refused(tenant: Tenant, query: dict[str, str]):
    answer = await take(tenant, empty_session(), **query)
    assert (answer.status_code, answer.json()["code"]) == (422, "InvalidRequest")


async def test_a_legacy_session_can_be_imported(tenant: Tenant):
    data = (GOLDEN / "legacy3.jsonl").read_bytes()
    answer = await take(tenant, data, id=new_id())
    assert answer.status_code == 201, answer.text
    session = answer.json()["session"]["id"]
    assert await tenant.entries(session)
    assert (await tenant.run(session, "echo: on"))["outcome"] == "completed"


async def test_a_session_of_files_with_names_can_be_imported(tenant: Tenant):
    repository = MemorySessions(Environment.system())
    options = CreateOptions(id="first", parent_session_id="zeroth", cwd="/work")
    await (await repository.create(options, BACKGROUND)).close(BACKGROUND)
    async with open_export(repository, "first", BACKGROUND) as export:
        data = export.path.read_bytes()
    refused = await take(tenant, data)
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidRequest")
    answer = await take(tenant, data, id=new_id())
    assert answer.status_code == 201, answer.text
    assert answer.json()["session"]["cwd"] == "/work"
    again = json.loads((await exported(tenant, answer.json()["session"]["id"])).partition(b"\n")[0])
    assert again["legacyParentSessionPath"] == "zeroth"


async def test_an_open_operation_goes_along_only_when_asked_and_is_driven(tenant: Tenant):
    repository = MemorySessions(Environment.system())
    model = scripted_model("echo")
    options = HarnessOptions(
        models=ModelRegistry([(model, ScriptedProvider([say("never said")]))]), model=model
    )
    session = await repository.create(CreateOptions(id=new_id()), BACKGROUND)
    harness, _ = await AgentHarness.create(session, options, BACKGROUND)
    await harness.accept(PromptRequest(prompt="echo: moved"), BACKGROUND)
    async with open_export(repository, session.id, BACKGROUND) as export:
        data = export.path.read_bytes()
    await harness.close(BACKGROUND)
    refused = await take(tenant, data)
    assert (refused.status_code, refused.json()["code"]) == (422, "InvalidRequest")
    assert "open operation" in refused.json()["detail"]
    answer = await take(tenant, data, operations="keep")
    assert answer.status_code == 201, answer.text
    listed = await tenant.client.get("/v1/operations", params={"sessionId": session.id})
    (receipt,) = listed.json()["data"]
    assert (await tenant.done(receipt["id"]))["outcome"] == "completed"
    texts = [entry["message"]["content"] for entry in await tenant.entries(session.id)]
    assert texts[0] == "echo: moved"
    assert len(texts) == 2
    # Elsewhere it would be driven a second time.
    stranger = await tenant.world.tenant()
    again = await take(stranger, data, id=new_id(), operations="keep")
    assert (again.status_code, again.json()["code"]) == (422, "InvalidRequest")
