"""Concurrent calls on one receiver keep their own lineage and cancellation (§5.8, §9.1 36)."""

from __future__ import annotations

import asyncio

import pytest

from harness.codec import encode
from harness.context import BACKGROUND, Context
from harness.errors import OperationCancelledByCaller
from harness.models.script import At, Gate, Text, say, steps
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.runtime.drive import DriveOptions
from harness.runtime.hooks import BeforeRequest
from harness.runtime.requests import PromptRequest
from harness.telemetry import Attributes, Span, SpanName, TelemetryContext
from tests.runtime.stage import Stage, caller, ok, settle


class Recorder:
    """A telemetry context that writes down what is started below it."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name

    def start(self, name: SpanName, attributes: Attributes | None = None) -> Span:
        self.log.append(f"{self.name}: {name}")
        return RecordedSpan(self)

    @property
    def traceparent(self) -> str | None:
        return None


class RecordedSpan:
    def __init__(self, context: TelemetryContext) -> None:
        self.context = context

    def end(self, attributes: Attributes | None = None, *, error: str | None = None) -> None:
        return None


def traced(log: list[str], name: str) -> Context:
    return BACKGROUND.with_telemetry(Recorder(log, name))


async def test_each_write_belongs_to_the_call_that_made_it(stage: Stage) -> None:
    log: list[str] = []
    stage.script([])
    await stage.open()
    parked = stage.gated.park("set pi.session.name")
    first = asyncio.ensure_future(stage.harness.tree.set_name("a", traced(log, "first")))
    await parked.reached()
    second = asyncio.ensure_future(stage.harness.next_run("b", traced(log, "second")))
    await settle()
    parked.release()
    await asyncio.gather(first, second)
    writes = [line for line in log if line.endswith("pi.session.write")]
    assert writes == ["first: pi.session.write", "second: pi.session.write"]


async def test_the_pass_runs_under_its_installer_not_under_a_joiner(stage: Stage) -> None:
    log: list[str] = []
    gate = Gate()
    stage.script([steps(At(gate), Text("x"))])
    await stage.open()
    operation = await stage.accept()
    installer = asyncio.ensure_future(
        stage.harness.drive(DriveOptions(operation), traced(log, "installer"))
    )
    await gate.reached()
    joiner = asyncio.ensure_future(
        stage.harness.drive(DriveOptions(operation), traced(log, "joiner"))
    )
    await settle()
    gate.open()
    ok(await installer)
    ok(await joiner)
    assert "installer: pi.ai.request" in log
    assert not [line for line in log if line.startswith("joiner")]


async def test_hooks_and_listeners_get_the_invocation(stage: Stage) -> None:
    log: list[str] = []
    seen: list[Context] = []

    def hook(event: BeforeRequest, context: Context) -> None:
        seen.append(context)

    stage.script([say("x")])
    await stage.open()
    stage.harness.hooks.on("before_request", hook)
    stage.harness.events.on("turn_start", lambda event, context: seen.append(context))
    operation = await stage.accept()
    ok(await stage.harness.drive(DriveOptions(operation), traced(log, "mine")))
    assert len(seen) == 2
    for context in seen:
        assert isinstance(context.telemetry, Recorder)
        assert context.telemetry.name == "mine"


@pytest.mark.parametrize("call", ["accept", "next_run", "set_name"])
async def test_a_caller_that_goes_away_ends_its_observation_not_its_write(
    stage: Stage, call: str
) -> None:
    stage.script([])
    await stage.open()
    controller, context = caller()
    parts = {"accept": "set pi.op.meta", "next_run": "pi.pending.entry", "set_name": "session.name"}
    parked = stage.gated.park(parts[call])
    calls = {
        "accept": lambda: stage.harness.accept(PromptRequest(prompt="x"), context),
        "next_run": lambda: stage.harness.next_run("x", context),
        "set_name": lambda: stage.harness.tree.set_name("x", context),
    }
    calling = asyncio.ensure_future(calls[call]())  # type: ignore[arg-type]
    await parked.reached()
    controller.abort()
    with pytest.raises(OperationCancelledByCaller):
        await calling
    parked.release()
    await settle()
    assert any(parts[call] in line for line in stage.journal if line.startswith("TX"))
    assert not [line for line in stage.journal if "(cancelling)" in line]


async def test_two_lanes_run_at_the_same_time(stage: Stage) -> None:
    gates = {"main": Gate(), "side": Gate()}
    arrived: list[str] = []

    def answer(request):  # a script
        name = str(request.context.messages[-1].content)
        arrived.append(name)
        return steps(At(gates[name]), Text(name))

    stage.script(answer)
    await stage.open()
    side = ok(await stage.harness.create_lane("side", None, BACKGROUND))
    main = asyncio.ensure_future(stage.harness.prompt("main", BACKGROUND))
    other = asyncio.ensure_future(side.prompt("side", BACKGROUND))
    await gates["main"].reached()
    await gates["side"].reached()
    assert sorted(arrived) == ["main", "side"]
    gates["side"].open()
    assert ok(await other).kind == "completed"
    assert not main.done()
    gates["main"].open()
    assert ok(await main).kind == "completed"
    stored = await stage.memory.get_value(values.lane_state("side"), BACKGROUND)
    assert stored is not None
    assert stored.value == IDLE_LANE


async def test_nothing_durable_mentions_a_context(stage: Stage) -> None:
    log: list[str] = []
    stage.script([say("x")])
    await stage.open()
    ok(await stage.harness.prompt("x", traced(log, "mine")))
    # A context cannot be encoded; that everything written can is the proof.
    stored = b"".join(encode(write) for writes in stage.storage.raw for write in writes)
    assert b"abortSignal" not in stored
    assert b"telemetry" not in stored
