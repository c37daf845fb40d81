"""Commands run wherever the session is: here, after a claim, or on the owner."""

from __future__ import annotations

import asyncio

import pytest

from harness.context import BACKGROUND, AbortController
from harness.entries import Entry
from harness.errors import (
    LaneBusy,
    NoActiveOperation,
    NothingToResume,
    OperationCancelledByCaller,
    SessionNotFound,
    UnknownTarget,
)
from harness.messages import UserMessage
from harness.operation.results import OperationAdmission
from harness.result import Ok
from harness.runtime.requests import NavigationRequest, PromptRequest
from harness.settings import ModelIdentity
from harness.usage import Usage
from tests.workers.kit import Fleet, eventually
from tests.workers.tools import GATES
from workers.commands import (
    Abort,
    Accept,
    AppendCustom,
    AppendMessage,
    ConfigureLane,
    CreateLane,
    FollowUp,
    Inspect,
    InspectLanes,
    InvalidRequest,
    NextRun,
    OperationIdTaken,
    RecordUsage,
    RequestAbort,
    Resume,
    SetLabel,
    SetName,
    Steer,
    UnknownLane,
    UnknownModel,
)

GATED = 'tool: {"name": "gated", "arguments": {"gate": "g"}}'


async def test_a_prompt_accepted_by_an_api_is_driven_by_a_worker(fleet: Fleet) -> None:
    api = await fleet.api()
    await fleet.worker()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: hello")
    assert await fleet.settled(operation) == ["completed"]
    texts = await fleet.texts(session)
    assert len(texts) == 2
    assert "hello" in texts[1]


async def test_idle_sessions_are_owned_by_nobody(fleet: Fleet) -> None:
    api = await fleet.api()
    worker = await fleet.worker()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: hello")
    await fleet.settled(operation)

    async def unowned() -> bool:
        return await fleet.owner(session) is None

    await eventually(unowned)
    assert not api.registry.busy
    assert not worker.registry.busy
    assert worker.lease.held == frozenset()


async def test_commands_reach_the_owner_from_any_process(fleet: Fleet) -> None:
    worker = await fleet.worker()
    near, far = await fleet.api(), await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(near, session, GATED)
    await GATES["g"].entered.wait()
    assert await fleet.owner(session) == worker.host_id
    seen = await fleet.ok(far, session, Inspect(lane="main"))
    assert seen["current"]["id"] == operation
    assert seen["current"]["status"] == "running"
    await fleet.ok(far, session, Steer(lane="main", message="turn left"))
    await fleet.ok(near, session, FollowUp(lane="main", message="and then right"))
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    texts = "".join(await fleet.texts(session))
    assert texts.count("turn left") >= 1
    assert texts.count("and then right") >= 1


async def test_an_abort_reaches_the_owner_from_another_process(fleet: Fleet) -> None:
    await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, GATED)
    await GATES["g"].entered.wait()
    answers = await asyncio.gather(
        *(
            fleet.ok(host, session, RequestAbort(lane="main", operation_id=operation))
            for host in fleet.hosts
            for _ in range(8)
        )
    )
    assert sum(answer["newlyRequested"] for answer in answers) == 1
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["aborted"]


async def test_an_abort_of_what_nobody_drives_is_carried_out_when_a_worker_comes(
    fleet: Fleet,
) -> None:
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: never said")
    await fleet.ok(api, session, Abort(lane="main"))
    assert await fleet.outcome(operation) is None
    await fleet.worker()
    assert await fleet.settled(operation) == ["aborted"]


async def test_one_operation_id_is_one_operation(fleet: Fleet) -> None:
    await fleet.worker()
    apis = [await fleet.api(), await fleet.api()]
    session = await fleet.session()
    operation_id = apis[0].environment.ids.next()
    command = Accept(
        lane="main", request=PromptRequest(prompt="echo: once", operation_id=operation_id)
    )
    answers = await asyncio.gather(*(fleet.ok(apis[i % 2], session, command) for i in range(20)))
    assert {answer["operationId"] for answer in answers} == {operation_id}
    assert await fleet.settled(operation_id) == ["completed"]
    late = await fleet.ok(apis[0], session, command)
    assert late == answers[0]
    assert len(await fleet.texts(session)) == 2
    other = await fleet.session()
    taken = await fleet.refused(apis[0], other, command)
    assert isinstance(taken, OperationIdTaken)


async def test_two_prompts_on_one_lane_are_one_admission(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    replies = await asyncio.gather(
        *(
            fleet.run(api, session, Accept(lane="main", request=PromptRequest(prompt=f"echo: {i}")))
            for i in range(2)
        )
    )
    admitted = [reply for reply in replies if isinstance(reply, Ok)]
    busy = [reply.error for reply in replies if not isinstance(reply, Ok)]
    assert len(admitted) == 1
    assert isinstance(busy[0], LaneBusy)


async def test_what_is_not_there_is_refused(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    missing = api.environment.ids.next()
    inspect = Inspect(lane="main")
    for tenant, name in (
        (fleet.tenant, missing),
        (missing, session),
        (fleet.tenant, "not an id"),
        (fleet.tenant, session.upper()),
    ):
        for command in (inspect, SetName(name="x")):
            with pytest.raises(SessionNotFound):
                await api.execute(tenant, name, command, BACKGROUND)
    assert isinstance(await fleet.refused(api, session, Inspect(lane="other")), UnknownLane)
    assert isinstance(
        await fleet.refused(api, session, Steer(lane="other", message="x")), UnknownLane
    )
    assert isinstance(
        await fleet.refused(api, session, SetLabel(target_id=missing, label="x")), UnknownTarget
    )
    assert isinstance(await fleet.refused(api, session, Abort(lane="main")), NoActiveOperation)
    assert isinstance(await fleet.refused(api, session, Resume(lane="main")), NothingToResume)
    unknown = ConfigureLane(lane="main", model=ModelIdentity(provider="no", model_id="such"))
    assert isinstance(await fleet.refused(api, session, unknown), UnknownModel)
    doubled = ConfigureLane(lane="main", active_tools=("gated", "gated"))
    assert isinstance(await fleet.refused(api, session, doubled), InvalidRequest)
    odd = Accept(lane="main", request=PromptRequest(prompt="x", operation_id="not an id"))
    assert isinstance(await fleet.refused(api, session, odd), InvalidRequest)


async def test_another_tenant_does_not_reach_an_owned_session(fleet: Fleet) -> None:
    worker = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    stranger = api.environment.ids.next()
    operation = await fleet.prompt(api, session, GATED)
    await GATES["g"].entered.wait()
    for host in (worker, api):
        for command in (Inspect(lane="main"), Abort(lane="main")):
            with pytest.raises(SessionNotFound):
                await host.execute(stranger, session, command, BACKGROUND)
        with pytest.raises(SessionNotFound):
            await anext(host.watch(stranger, session, "main", BACKGROUND))
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]


async def test_a_session_that_was_never_opened_can_be_inspected(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    seen = await fleet.ok(api, session, Inspect(lane="main"))
    assert seen["configuredModel"] == {"provider": "scripted", "modelId": "prompted"}
    lanes = await fleet.ok(api, session, InspectLanes())
    assert [lane["name"] for lane in lanes] == ["main"]
    rows = await fleet.sql("SELECT fence FROM laneway.sessions WHERE id = %s", session)
    assert rows == [(0,)]


async def test_everything_that_writes_is_kept(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    message = UserMessage(content="noted", timestamp=1)
    entry = await fleet.ok(api, session, AppendMessage(lane="main", message=message))
    await fleet.ok(api, session, AppendCustom(lane="main", custom_type="mark", data={"a": [1]}))
    await fleet.ok(api, session, SetName(name="a name"))
    await fleet.ok(api, session, SetLabel(target_id=entry["entryId"], label="here"))
    await fleet.ok(api, session, RecordUsage(lane="main", usage=Usage(input=3)))
    await fleet.ok(api, session, CreateLane(name="side", at=entry["entryId"]))
    await fleet.ok(api, session, NextRun(lane="side", message="later"))
    configured = await fleet.ok(
        api, session, ConfigureLane(lane="side", thinking_level="high", active_tools=("gated",))
    )
    assert configured["thinkingLevel"] == "high"
    assert configured["activeToolNames"] == ["gated"]
    reader = api.sessions.reader(fleet.tenant, session)
    found: dict[str, Entry] = dict(await reader.get_entries([entry["entryId"]], BACKGROUND))
    assert list(found) == [entry["entryId"]]
    lanes = await fleet.ok(api, session, InspectLanes())
    assert {lane["name"]: lane["leafId"] for lane in lanes}["side"] == entry["entryId"]
    stats = await reader.get_stats(BACKGROUND)
    assert stats.usage.input == 3
    assert (await fleet.sql("SELECT name FROM laneway.sessions"))[0][0] == "a name"


async def test_an_append_that_must_wait_lets_a_worker_have_the_session(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    message = UserMessage(content="first", timestamp=1)
    first = await fleet.ok(api, session, AppendMessage(lane="main", message=message))
    await fleet.ok(api, session, AppendCustom(lane="main", custom_type="mark"))
    back = Accept(lane="main", request=NavigationRequest(target_id=first["entryId"]))
    navigation = OperationAdmission(
        operation_id=(await fleet.ok(api, session, back))["operationId"],
        kind="navigation",
        started_at=0,
    )
    appended = asyncio.ensure_future(
        fleet.ok(api, session, AppendMessage(lane="main", message=message))
    )
    await asyncio.sleep(0)
    await fleet.worker()
    entry = await appended
    assert await fleet.settled(navigation.operation_id) == ["completed"]
    rows = await fleet.sql(
        "SELECT parent_id::text FROM laneway.entries WHERE id = %s", entry["entryId"]
    )
    assert rows == [(first["entryId"],)]


async def test_a_cancelled_caller_gives_up_before_anything_is_done(fleet: Fleet) -> None:
    api = await fleet.api()
    session = await fleet.session()
    controller = AbortController()
    controller.abort()
    context = BACKGROUND.with_abort_signal(controller.signal)
    with pytest.raises(OperationCancelledByCaller):
        await api.execute(fleet.tenant, session, SetName(name="x"), context)
    assert (await fleet.sql("SELECT name FROM laneway.sessions")) == [(None,)]


async def test_many_commands_at_once_share_one_claim(fleet: Fleet) -> None:
    apis = [await fleet.api(), await fleet.api()]
    session = await fleet.session()
    await asyncio.gather(
        *(
            fleet.ok(
                apis[i % 2],
                session,
                AppendMessage(lane="main", message=UserMessage(content=str(i), timestamp=1)),
            )
            for i in range(40)
        )
    )
    rows = await fleet.sql("SELECT count(*), count(DISTINCT parent_id) FROM laneway.entries")
    assert rows == [(40, 39)]
