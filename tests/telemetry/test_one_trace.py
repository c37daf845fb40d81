"""One trace from the request to the provider, whichever processes it leads through (design §13)."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from harness.codec import decode
from harness.context import Context
from harness.operation.results import OperationAdmission
from harness.result import Ok
from harness.runtime.requests import PromptRequest
from tests.postgres import Database
from tests.telemetry.recording import Recording, attributes, trace_id
from tests.workers.kit import Fleet, eventually
from tests.workers.test_ownership import gated
from tests.workers.tools import GATES
from workers.commands import Accept, CreateLane
from workers.host import SessionHost

ONE = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
TWO = ("1bf7651916cd43dd8448eb211c80319c", "c7ad6b7169203331")
PASS = "laneway.pass"


def place(ids: tuple[str, str]) -> str:
    """A client's `traceparent`."""
    return f"00-{ids[0]}-{ids[1]}-01"


@pytest.fixture
async def fleet(fresh_database: Database, recording: Recording) -> AsyncIterator[Fleet]:
    """Hosts that all record here."""
    GATES.clear()
    made = Fleet(fresh_database, recording.tracing)
    yield made
    await made.close()


async def accepted(
    fleet: Fleet, host: SessionHost, session: str, text: str, context: Context, lane: str = "main"
) -> str:
    """The id of a prompt that was accepted within a trace."""
    command = Accept(lane=lane, request=PromptRequest(prompt=text))
    reply = await host.execute(fleet.tenant, session, command, context)
    assert isinstance(reply, Ok), reply
    return decode(reply.value, OperationAdmission).operation_id


async def given_back(fleet: Fleet) -> None:
    """Return when no host owns anything: every span of a pass has ended."""
    await eventually(lambda: not any(host.registry.busy for host in fleet.hosts))


async def test_a_job_drives_within_the_trace_of_the_acceptance(
    fleet: Fleet, recording: Recording
) -> None:
    worker = await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await accepted(fleet, api, session, "echo: hello", recording.context(place(ONE)))
    assert await fleet.settled(operation) == ["completed"]
    await given_back(fleet)
    assert recording.traces == {ONE[0]}
    assert recording.tree() == [
        PASS,
        "  run",
        "    checkpoint",
        "    turn",
        "      step",
        "        ai.request",
        "    checkpoint",
    ]
    pass_ = recording.only(PASS)
    assert pass_.parent is not None
    assert f"{pass_.parent.span_id:016x}" == ONE[1]
    assert attributes(pass_) == {
        "laneway.tenant.id": fleet.tenant,
        "laneway.host.id": worker.host_id,
        "pi.session.id": session,
        "pi.lane.name": "main",
        "pi.operation.id": operation,
    }


async def test_a_command_that_is_forwarded_takes_its_trace_along(
    fleet: Fleet, recording: Recording
) -> None:
    await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    await fleet.ok(api, session, CreateLane(name="side"))
    first = await accepted(fleet, api, session, gated("g"), recording.context(place(ONE)))
    await GATES["g"].entered.wait()
    recording.clear()
    # The session is owned now: the worker accepts this, and drives it without any job.
    second = await accepted(
        fleet, api, session, "echo: x", recording.context(place(TWO)), lane="side"
    )
    assert await fleet.settled(second) == ["completed"]
    await eventually(lambda: len(recording.named(PASS)) == 1)
    assert recording.traces == {TWO[0]}
    assert recording.named("pi.ai.request")
    GATES["g"].release.set()
    assert await fleet.settled(first) == ["completed"]
    await given_back(fleet)
    assert recording.traces == {ONE[0], TWO[0]}
    for span in recording.spans:
        operation = attributes(span).get("pi.operation.id")
        assert operation is None or trace_id(span) == {first: ONE, second: TWO}[str(operation)][0]


async def test_whoever_takes_over_goes_on_with_the_trace(
    fleet: Fleet, recording: Recording
) -> None:
    worker = await fleet.worker()
    session = await fleet.session()
    operation = await accepted(
        fleet, worker, session, gated("g", "gated_safe"), recording.context(place(ONE))
    )
    await GATES["g"].entered.wait()
    second = await fleet.worker()
    await fleet.kill(worker)
    await eventually(lambda: GATES["g"].starts == 2)
    GATES["g"].release.set()
    assert await fleet.settled(operation) == ["completed"]
    await eventually(lambda: not second.registry.busy)
    (pass_,) = [
        span
        for span in recording.named(PASS)
        if attributes(span)["laneway.host.id"] == second.host_id
    ]
    assert trace_id(pass_) == ONE[0]
    assert pass_.parent is not None
    assert f"{pass_.parent.span_id:016x}" == ONE[1]
    (run,) = [span for span in recording.named("pi.harness.run") if recording.parent(span) is pass_]
    assert attributes(run)["pi.operation.recovery"] is True
    replayed = [attributes(span)["pi.tool.recovery"] for span in recording.named("pi.harness.tool")]
    assert True in replayed
    # The request that came after the tool was made by the second host.
    assert recording.named("pi.ai.request")[-1].context is not None
    assert recording.traces == {ONE[0]}


async def test_the_row_names_the_trace_until_the_operation_is_over(
    fleet: Fleet, recording: Recording
) -> None:
    api = await fleet.api()
    session = await fleet.session()
    query = "SELECT traceparent FROM laneway.open_operations WHERE operation_id = %s"
    operation = await accepted(fleet, api, session, "echo: x", recording.context(place(ONE)))
    assert await fleet.sql(query, operation) == [(place(ONE),)]
    await fleet.worker()
    await fleet.settled(operation)
    assert await fleet.sql(query, operation) == []


async def test_who_accepts_outside_a_trace_leaves_the_pass_to_begin_one(
    fleet: Fleet, recording: Recording
) -> None:
    await fleet.worker()
    api = await fleet.api()
    session = await fleet.session()
    operation = await fleet.prompt(api, session, "echo: x")
    assert await fleet.settled(operation) == ["completed"]
    await given_back(fleet)
    assert len(recording.traces) == 1
    assert recording.only(PASS).parent is None
