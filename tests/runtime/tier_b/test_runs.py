"""Runs without tools: acceptance, generation, retry, failure, deferral, abort (§3.6, §3.7, §3.2, §3.13)."""

from __future__ import annotations

import msgspec

from harness.context import BACKGROUND
from harness.messages import DeferredHandle
from harness.models.script import At, Defer, Gate, Text, fail, say, steps, tokens
from harness.settings import RetryPolicy, StreamOptions
from tests.runtime.stage import Stage, ok, settle
from tests.runtime.tier_b.telling import ACCEPTED, STARTED, answered, asked, ended, placed, told

HANDLE = DeferredHandle(id="job", provider="scripted", model_id="scripted", api="scripted")


async def test_a_text_run(stage: Stage) -> None:
    stage.script([say("one two", deltas=2, usage=tokens(3, 2))])
    await stage.open()
    await stage.prompt()
    assert told(stage) == [
        *ACCEPTED,
        *STARTED,
        *asked(),
        *answered("stop", "checkpoint may_finish"),
        "turn_end 0",
        *ended("completed"),
    ]


async def test_acceptance_places_what_waited_for_the_next_run_first(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    ok(await stage.harness.next_run("before", BACKGROUND))
    stage.journal.clear()
    await stage.accept()
    assert told(stage) == [
        (
            "TX entry user; entry user; delete pi.pending.entry; set pi.lane.leaf; set pi.op.meta; "
            "set pi.op.state starting; set pi.lane.state busy"
        ),
        "run_start",
        *placed("user", "user"),
        "queue_update 0/0/0",
    ]


async def test_a_failed_attempt_is_settled_before_the_next_one_is_prepared(stage: Stage) -> None:
    stage.script([fail("overloaded", kind="retryable"), say("x")])
    await stage.open()
    await stage.prompt()
    assert told(stage) == [
        *ACCEPTED,
        *STARTED,
        *asked(),
        *answered("error", "assistant retry_wait 2", began="error"),
        "retry_scheduled 2",
        *asked(2),
        *answered("stop", "checkpoint may_finish"),
        "retry_end 2 succeeded",
        "turn_end 0",
        *ended("completed"),
    ]


async def test_exhausted_retries_fail_the_run(stage: Stage) -> None:
    stage.script([fail("overloaded", kind="retryable"), fail("overloaded", kind="retryable")])
    await stage.open(retry=RetryPolicy(max_retries=1, base_delay_ms=1))
    await stage.prompt()
    assert told(stage) == [
        *ACCEPTED,
        *STARTED,
        *asked(),
        *answered("error", "assistant retry_wait 2", began="error"),
        "retry_scheduled 2",
        *asked(2),
        *answered("error", "failure_drain provider_error", began="error"),
        "retry_end 2 failed",
        "turn_end 0",
        *ended("failed"),
    ]


async def test_a_terminal_error_fails_the_run_at_once(stage: Stage) -> None:
    stage.script([fail("no such key", kind="terminal")])
    await stage.open()
    await stage.prompt()
    assert told(stage) == [
        *ACCEPTED,
        *STARTED,
        *asked(),
        *answered("error", "failure_drain provider_error", began="error"),
        "turn_end 0",
        *ended("failed"),
    ]


async def test_a_missing_model_fabricates_neither_response_nor_usage(stage: Stage) -> None:
    stage.script([say("never")])
    await stage.open()
    operation = await stage.accept()
    stage.registry.unregister(stage.model.identity)
    await stage.drive(operation)
    assert told(stage) == [
        *ACCEPTED,
        *STARTED,
        "TX set pi.op.state assistant ready 1",
        "TX set pi.op.state failure_drain model_unavailable",
        *ended("failed"),
    ]


async def test_a_missing_active_tool_fails_before_the_request(stage: Stage) -> None:
    stage.script([say("never")])
    await stage.open(active_tool_names=("gone",))
    await stage.prompt()
    assert told(stage) == [
        *ACCEPTED,
        *STARTED,
        "TX set pi.op.state assistant ready 1",
        "TX set pi.op.state failure_drain configured_tools_unavailable",
        *ended("failed"),
    ]


def polled(number: int) -> list[str]:
    return [f"TX set pi.op.state deferred pending {number}", "turn_start", "poll"]


async def test_deferred_generation_polls_once_per_permit(stage: Stage) -> None:
    stage.script([steps(Defer(HANDLE)), steps(Defer(HANDLE)), say("x")])
    await stage.open(stream_options=StreamOptions(deferred=True))
    operation = await stage.accept()
    ok(await stage.drive(operation))
    suspended = [
        *ACCEPTED,
        *STARTED,
        *asked(),
        *answered("deferred", "deferred suspended 0"),
        "turn_end 0",
        "run_suspend",
    ]
    assert told(stage) == suspended
    ok(await stage.drive(operation))
    assert told(stage) == suspended, "a pass without a permit does nothing"
    ok(await stage.drive(operation, poll=True))
    again = [
        *suspended,
        *polled(1),
        *answered("deferred", "deferred suspended 1"),
        "turn_end 0",
        "run_suspend",
    ]
    assert told(stage) == again
    ok(await stage.drive(operation, poll=True))
    assert told(stage) == [
        *again,
        *polled(2),
        *answered("stop", "checkpoint may_finish"),
        "turn_end 0",
        *ended("completed"),
    ]


async def test_another_handle_is_normalized_into_a_durable_error(stage: Stage) -> None:
    other = msgspec.structs.replace(HANDLE, id="other")
    stage.script([steps(Defer(HANDLE)), steps(Defer(other))])
    await stage.open(stream_options=StreamOptions(deferred=True))
    operation = await stage.accept()
    ok(await stage.drive(operation))
    stage.journal.clear()
    ok(await stage.drive(operation, poll=True))
    assert told(stage) == [
        *polled(1),
        *answered("deferred", "failure_drain provider_error", stored="error"),
        "turn_end 0",
        *ended("failed"),
    ]


async def test_an_aborted_stream_settles_under_its_reserved_ids(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("begun"), At(gate), Text("never"))])
    await stage.open()
    operation = await stage.accept()
    driving = stage.drive(operation)
    await gate.reached()
    await settle()
    ok(await stage.harness.steer("too late", BACKGROUND))
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    ok(await driving)
    assert told(stage) == [
        *ACCEPTED,
        *STARTED,
        *asked(),
        "message_start assistant:pending",
        "TX set pi.pending.entry user; set pi.op.state assistant pending 1",
        "queue_update 1/0/0",
        "TX set pi.op.state assistant pending 1 (cancelling)",
        "run_abort 1/0",
        "queue_update 0/0/0",
        "message_end assistant:aborted",
        (
            "TX entry assistant:aborted; usage; set pi.lane.leaf; drop pi.pending.assistant_frame; "
            "set pi.op.state checkpoint may_finish (cancelling)"
        ),
        "entry_added assistant:aborted",
        "usage",
        "turn_end 0",
        *ended("aborted", "pi.pending.entry"),
    ]


async def test_an_abort_before_the_first_drive_starts_nothing(stage: Stage) -> None:
    stage.script([say("never")])
    await stage.open()
    stage.harness.hooks.on("before_drive", lambda event, context: stage.journal.append("hook"))
    stage.harness.hooks.on("before_run", lambda event, context: stage.journal.append("hook"))
    operation = await stage.accept()
    ok(await stage.harness.request_abort(operation, BACKGROUND))
    ok(await stage.drive(operation))
    assert told(stage) == [
        *ACCEPTED,
        "TX set pi.op.state starting (cancelling)",
        "run_abort 0/0",
        *ended("aborted"),
    ]
