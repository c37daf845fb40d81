"""Watching against publication: no gap, no duplicate, whichever comes first (§5.4, §9.2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.context import BACKGROUND, Context
from harness.entries import MessageEntry
from harness.messages import AgentToolResult, plain_text, text_result
from harness.models.script import At, Gate, Text, call, say, steps
from harness.operation.events import EntryAdded, HarnessEvent
from harness.runtime.snapshots import LaneWatch
from harness.testing.journal import describe_event
from harness.tools.protocol import ToolCallRequest
from tests.runtime.stage import Stage, ok, settle


class Viewer:
    """A client: what the snapshot showed, and what came after."""

    def __init__(self, watch: LaneWatch) -> None:
        self.watch = watch
        self.events: list[HarnessEvent] = []
        self.contexts: list[Context] = []
        self.entries = [entry.id for entry in watch.snapshot.transcript]

    async def start(self) -> None:
        def heard(event: HarnessEvent, context: Context) -> None:
            self.events.append(event)
            self.contexts.append(context)
            if isinstance(event, EntryAdded):
                self.entries.append(event.entry.id)

        await self.watch.start(heard)

    def told(self) -> list[str]:
        return [describe_event(event) for event in self.events]


async def viewer(stage: Stage) -> Viewer:
    return Viewer(await stage.harness.watch(BACKGROUND))


@pytest.mark.parametrize("first", ["watcher", "publication"])
async def test_registration_vs_publication(stage: Stage, first: str) -> None:
    stage.script([say("x")])
    await stage.open()
    # A job of the line stands at its commit, or has just published, when the watch is asked for.
    parked = stage.gated.park("set pi.op.meta", durable=first == "publication")
    if first == "publication":
        accepting = asyncio.ensure_future(stage.accept())
        await parked.reached()
        watching = asyncio.ensure_future(viewer(stage))
        await settle()
        assert not watching.done(), "the capture waits for its turn on the line"
        parked.release()
        seen = await watching
        await accepting
        await seen.start()
        assert len(seen.watch.snapshot.transcript) == 1
        assert seen.told() == [], "what the snapshot shows is not told again"
    else:
        seen = await viewer(stage)
        accepting = asyncio.ensure_future(stage.accept())
        await parked.reached()
        parked.release()
        await accepting
        await seen.start()
        assert seen.watch.snapshot.transcript == ()
        assert seen.told() == [
            "run_start",
            "message_start user",
            "message_end user",
            "entry_added user",
        ]


@pytest.mark.parametrize("first", ["capture", "resume"])
async def test_capture_vs_resume(stage: Stage, first: str) -> None:
    stage.script([say("x")])
    await stage.open()
    await stage.accept()
    await stage.reopen()
    if first == "capture":
        seen = await viewer(stage)
        ok(await stage.harness.resume(BACKGROUND))
        await seen.start()
        operation = seen.watch.snapshot.operation
        assert operation is not None
        assert operation.status == "open"
        assert seen.told()[0] == "run_resume"
        assert seen.told()[-1] == "run_end completed"
    else:
        ok(await stage.harness.resume(BACKGROUND))
        seen = await viewer(stage)
        await seen.start()
        assert seen.watch.snapshot.operation is None
        assert seen.watch.snapshot.last_result is not None
        assert seen.told() == []


async def test_a_viewer_at_any_moment_ends_with_the_same_transcript(stage: Stage) -> None:
    """A viewer joins after every event of a run with a tool; each ends as the first one does."""
    viewers: list[Viewer] = []
    joining: list[asyncio.Task[None]] = []

    async def join() -> None:
        made = await viewer(stage)
        viewers.append(made)
        await made.start()

    def each(event: HarnessEvent, context: Context) -> None:
        joining.append(asyncio.ensure_future(join()))

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        request.on_update(text_result("half"), checkpoint=True)
        return text_result("done")

    stage.tool("t", work).script([call("t", text="look"), say("a b", deltas=2)])
    await stage.open()
    await join()
    stage.harness.events.on("*", each)
    await stage.prompt()
    await asyncio.gather(*joining)
    await settle()
    assert len(viewers) > 20
    complete = viewers[0].entries
    assert len(complete) == 4
    for made in viewers:
        assert made.entries == complete


@pytest.mark.parametrize("first", ["event", "commit"])
async def test_a_live_update_and_its_frame_finish_in_either_order(stage: Stage, first: str) -> None:
    gate = Gate()
    stage.script([steps(Text("alpha"), At(gate)), say("again")])
    await stage.open()
    operation = await stage.accept()
    frame = stage.gated.park("text_delta") if first == "event" else None
    driving = stage.drive(operation)
    await gate.reached()
    await settle()
    # Live observation does not depend on what is stored ...
    assert "message_update text_delta" in stage.journal
    if frame is not None:
        assert frame.is_reached
        frame.fail(OSError("gone"))
        await asyncio.gather(driving, return_exceptions=True)
    else:
        closing = asyncio.ensure_future(stage.harness.close(BACKGROUND))
        await closing
        await asyncio.gather(driving, return_exceptions=True)
    await stage.reopen()
    seen = await viewer(stage)
    operation_seen = seen.watch.snapshot.operation
    assert operation_seen is not None
    assert operation_seen.streaming_message is not None
    # ... and after a reconnect to another process only what is stored is there.
    shown = plain_text(operation_seen.streaming_message.content)
    assert shown == ("" if first == "event" else "alpha")
    assert len(seen.watch.snapshot.transcript) == 1, "a partial is never in the transcript"


async def test_live_partials_go_before_stored_ones(stage: Stage) -> None:
    begin, end = Gate(), Gate()

    async def work(request: ToolCallRequest[None]) -> AgentToolResult:
        request.on_update(text_result("stored"), checkpoint=True)
        request.on_update(text_result("newer"))
        await begin.pass_through()
        await end.pass_through()
        return text_result("done")

    stage.tool("t", work).script([call("t"), say("x")])
    await stage.open()
    driving = stage.drive(await stage.accept())
    await begin.reached()
    begin.open()
    seen = await viewer(stage)
    operation = seen.watch.snapshot.operation
    assert operation is not None
    (running,) = operation.running_tools
    partial: Any = running.partial_result
    assert partial.content[0].text == "newer"
    end.open()
    ok(await driving)


async def test_buffered_events_keep_the_context_they_were_emitted_under(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    seen = await viewer(stage)
    mine = Context()
    ok(await stage.harness.prompt("go", mine))
    other = Context()
    await seen.start()
    assert seen.contexts
    assert all(context is not other for context in seen.contexts)
    # The pass runs under the installer's lineage without its cancellation.
    accepted = [
        context
        for event, context in zip(seen.events, seen.contexts, strict=True)
        if describe_event(event) == "run_start"
    ]
    assert accepted == [mine]
    assert accepted[0] is mine


async def test_a_watcher_that_never_started_is_dropped_cleanly(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    seen = await viewer(stage)
    await stage.prompt()
    seen.watch.unsubscribe()
    await seen.start()
    assert seen.events == []


async def test_a_broken_presentation_reference_faults_the_watch(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(At(gate))])
    await stage.open(listen=False)
    driving = stage.drive(await stage.accept())
    await gate.reached()
    entry = ok(await stage.harness.steer("gone", BACKGROUND)).entry_id
    del stage.memory.state.values["pi.pending.entry"][entry]
    with pytest.raises(Exception, match="missing"):
        await stage.harness.watch(BACKGROUND)
    assert stage.harness.faulted is not None
    await asyncio.gather(driving, return_exceptions=True)


async def test_transcripts_hold_only_committed_messages(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("draft"), At(gate))])
    await stage.open()
    driving = stage.drive(await stage.accept())
    await gate.reached()
    await settle()
    seen = await viewer(stage)
    roles = [
        entry.message.__struct_config__.tag
        for entry in seen.watch.snapshot.transcript
        if isinstance(entry, MessageEntry)
    ]
    assert roles == ["user"]
    gate.open()
    ok(await driving)
