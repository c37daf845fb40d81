"""Deferred generation in each of its states (§3.2)."""

from __future__ import annotations

import msgspec
import pytest

from harness.context import BACKGROUND
from harness.frames import StartFrame, TextDelta, TextStart
from harness.models.script import Call, Defer, calls, fail, say, steps
from harness.operation.results import DriveWaitingDeferred
from harness.operation.state import (
    RUNNING,
    Control,
    Deferred,
    DeferredPending,
    DeferredPhase,
    DeferredSuspended,
)
from harness.settings import StreamOptions
from harness.testing.judging import branch, canonical_entry, leftovers
from tests.runtime.stage import Stage, ok
from tests.runtime.tier_a.building import CANCELLED, HANDLE, Built
from tests.runtime.tier_b.telling import told


class Waiting(Built):
    """A run that waits for its provider."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.source = self.assistant(stop="deferred", handle=HANDLE)

    def suspended(self, poll: int = 0) -> DeferredSuspended:
        return DeferredSuspended(
            step_id=self.step,
            source_entry_id=self.source,
            poll=poll,
            configuration=self.configuration,
            stream_options=StreamOptions(deferred=True, max_tokens=77),
        )

    def lost(self, poll: int = 1) -> DeferredPending:
        """A poll that was under way, with some output."""
        response = self.new_id()
        self.frames(
            response,
            [
                StartFrame(partial=self.response(stop="pending")),
                TextStart(content_index=0),
                TextDelta(content_index=0, delta="part"),
            ],
        )
        return DeferredPending(
            step_id=self.step,
            source_entry_id=self.source,
            poll=poll,
            response_entry_id=response,
            usage_id=self.new_id(),
            configuration=self.configuration,
            stream_options=StreamOptions(),
        )

    async def open(self, deferred: Deferred, control: Control = RUNNING) -> str:
        state = self.run(DeferredPhase(deferred=deferred), control=control, latest=self.source)
        return await self.durable(state)


async def texts(stage: Stage) -> list[object]:
    return [canonical_entry(entry) for entry in await branch(stage.memory)]


@pytest.mark.parametrize("state", ["suspended", "lost"])
async def test_without_a_permit_it_waits(stage: Stage, state: str) -> None:
    built = Waiting(stage)
    stage.script([])
    operation = await built.open(built.suspended() if state == "suspended" else built.lost())
    waiting = ok(await stage.drive(operation))
    assert isinstance(waiting, DriveWaitingDeferred)
    assert waiting.deferred == HANDLE
    assert told(stage) == []
    # The stored partial of a lost poll can be looked at meanwhile.
    snapshot = (await stage.harness.watch(BACKGROUND)).snapshot
    assert snapshot.operation is not None
    assert (snapshot.operation.streaming_message is not None) == (state == "lost")


async def test_a_permit_polls_with_the_captured_options(stage: Stage) -> None:
    built = Waiting(stage)
    stage.script([say("ready")])
    attempts: list[int] = []
    operation = await built.open(built.suspended(4))
    stage.harness.hooks.on("before_request", lambda event, context: attempts.append(event.attempt))
    settled = ok(await stage.drive(operation, poll=True))
    assert settled.outcome.kind == "completed"
    assert attempts == [5], "the number of the poll, counted from one"
    assert stage.provider is not None
    (request,) = stage.provider.scripted.requests
    assert request.handle == HANDLE
    assert request.options.stream.max_tokens == 77
    assert not request.options.stream.deferred


async def test_pending_again_becomes_the_next_source(stage: Stage) -> None:
    built = Waiting(stage)
    stage.script([steps(Defer(HANDLE)), say("ready")])
    operation = await built.open(built.suspended())
    waiting = ok(await stage.drive(operation, poll=True))
    assert isinstance(waiting, DriveWaitingDeferred)
    assert waiting.poll == 1
    assert waiting.source_entry_id != built.source
    await stage.reopen()
    assert ok(await stage.drive(operation, poll=True)).outcome.kind == "completed"


async def test_ready_with_calls_runs_them(stage: Stage) -> None:
    built = Waiting(stage)
    stage.script([calls(Call("unknown")), say("after")])
    operation = await built.open(built.suspended())
    assert ok(await stage.drive(operation, poll=True)).outcome.kind == "completed"
    assert "TX set pi.pending.entry toolResult:error; set pi.op.state tools [ready]" in told(stage)


@pytest.mark.parametrize(
    "answer",
    [
        fail("overloaded", kind="retryable"),
        steps(Defer(msgspec.structs.replace(HANDLE, id="other"))),
        steps(Defer(None)),
    ],
    ids=["provider error", "another handle", "no handle"],
)
async def test_polls_have_no_retry(stage: Stage, answer: object) -> None:
    built = Waiting(stage)
    stage.script([answer])  # type: ignore[list-item]
    operation = await built.open(built.suspended())
    settled = ok(await stage.drive(operation, poll=True))
    assert settled.outcome.kind == "failed"
    assert (await texts(stage))[-1][:3] == ("assistant", "dropped", "error")  # type: ignore[index]
    assert await leftovers(stage.memory, set()) == []


async def test_a_lost_poll_is_replaced_at_the_same_number(stage: Stage) -> None:
    built = Waiting(stage)
    stage.script([say("ready")])
    lost = built.lost(3)
    operation = await built.open(lost)
    assert ok(await stage.drive(operation, poll=True)).outcome.kind == "completed"
    assert (
        told(stage)[0] == "TX drop pi.pending.assistant_frame; set pi.op.state deferred pending 3"
    )
    assert lost.response_entry_id not in stage.memory.state.entries
    assert lost.usage_id not in stage.memory.state.usage
    assert stage.memory.state.lists == {}


@pytest.mark.parametrize("state", ["suspended", "lost"])
async def test_a_missing_model_abandons_the_handle(stage: Stage, state: str) -> None:
    built = Waiting(stage)
    operation = await built.open(built.suspended() if state == "suspended" else built.lost())
    settled = ok(await stage.drive(operation, poll=True))
    assert settled.outcome.kind == "failed"
    assert settled.outcome.error.code == "model_unavailable"
    drop = "drop pi.pending.assistant_frame; " if state == "lost" else ""
    assert told(stage)[0] == f"TX {drop}set pi.op.state failure_drain model_unavailable"
    assert len(stage.memory.state.entries) == 2, "no response is fabricated"


async def test_a_cancelled_lost_poll_settles_with_its_partial(stage: Stage) -> None:
    built = Waiting(stage)
    stage.script([])
    lost = built.lost()
    operation = await built.open(lost, CANCELLED)
    assert ok(await stage.drive(operation)).outcome.kind == "aborted"
    assert lost.response_entry_id in stage.memory.state.entries
    assert lost.usage_id in stage.memory.state.usage
    assert (await texts(stage))[-1] == ("assistant", "dropped", "aborted", (("text", "part"),))
    assert "cancel_deferred" in stage.journal
    assert stage.memory.state.lists == {}


async def test_a_missing_handle_is_corruption(stage: Stage) -> None:
    built = Waiting(stage)
    built.source = built.assistant(stop="stop")
    stage.script([])
    operation = await built.open(built.suspended())
    with pytest.raises(Exception, match="no handle"):
        await stage.drive(operation)
    assert stage.harness.faulted is not None
