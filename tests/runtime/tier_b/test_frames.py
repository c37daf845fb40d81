"""Stream frames: one per event, in order, never waited for, gone with the settlement (§3.7)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from harness.context import Context
from harness.frames import AssistantMessageEvent
from harness.messages import AssistantMessage
from harness.models.script import At, Gate, Interleave, Text, Thinking, call, say, steps
from harness.models.scripted import ScriptedProvider
from harness.runtime.hooks import AfterResponse
from harness.storage.writes import FRAME_NAMESPACE, AppendList
from tests.runtime.stage import Stage, ok, settle
from tests.runtime.tier_b.telling import FRAMES

APPEND = f"TX {FRAMES}"


def frames(stage: Stage) -> list[str]:
    """The kinds of the frames that were committed."""
    return [line.split()[-1] for line in stage.journal if line.startswith(APPEND)]


async def test_each_event_but_the_last_becomes_one_frame_in_stream_order(stage: Stage) -> None:
    stage.script([steps(Interleave((Thinking("hm", deltas=2), Text("ab", deltas=2))))])
    await stage.open()
    await stage.prompt()
    updates = [line.split()[-1] for line in stage.journal if line.startswith("message_update")]
    assert frames(stage) == ["start", *updates]
    assert frames(stage) == [
        "start",
        "thinking_start",
        "text_start",
        "thinking_delta",
        "text_delta",
        "thinking_delta",
        "text_delta",
        "thinking_end",
        "text_end",
    ]


async def test_frames_of_tool_calls_are_kept_as_well(stage: Stage) -> None:
    stage.script([call("unknown"), say("x")])
    await stage.open()
    await stage.prompt()
    assert frames(stage)[:5] == [
        "start",
        "toolcall_start",
        "toolcall_delta",
        "toolcall_delta",
        "toolcall_end",
    ]


async def test_the_stream_does_not_wait_for_its_frames(stage: Stage) -> None:
    gate = Gate()
    stage.script([steps(Text("a b c", deltas=3), At(gate))])
    await stage.open()
    first = stage.gated.park(f"{FRAMES} start")
    driving = stage.drive(await stage.accept())
    await first.reached()
    # The stream runs to its gate while not a single frame is stored.
    await gate.reached()
    assert frames(stage) == []
    assert [line for line in stage.journal if line.startswith("message_update")]
    first.release()
    gate.open()
    ok(await driving)
    assert frames(stage) == ["start", "text_start", *["text_delta"] * 3, "text_end"]


async def test_after_response_waits_for_the_last_frame(stage: Stage) -> None:
    def after(event: AfterResponse, context: Context) -> AssistantMessage | None:
        stage.journal.append("hook after_response")
        return None

    stage.script([say("x")])
    await stage.open()
    stage.harness.hooks.on("after_response", after)
    last = stage.gated.park(f"{FRAMES} text_end")
    driving = stage.drive(await stage.accept())
    await last.reached()
    await settle()
    assert "hook after_response" not in stage.journal
    assert not any(line.startswith("message_end assistant") for line in stage.journal)
    last.release()
    ok(await driving)
    order = [
        line
        for line in stage.journal
        if line in (f"{APPEND} text_end", "hook after_response", "message_end assistant:stop")
        or line.startswith("TX entry assistant")
    ]
    assert order[:3] == [
        f"{APPEND} text_end",
        "hook after_response",
        "message_end assistant:stop",
    ]
    assert order[3].startswith("TX entry assistant:stop; usage; ")


async def test_the_settlement_deletes_exactly_its_own_list(stage: Stage) -> None:
    stage.script([call("unknown"), say("x")])
    await stage.open()
    await stage.prompt()
    appended = [
        write.key
        for writes in stage.storage.raw
        for write in writes
        if isinstance(write, AppendList) and write.namespace == FRAME_NAMESPACE
    ]
    assert len(set(appended)) == 2
    assert stage.memory.state.lists == {}


async def test_a_failed_frame_append_faults_and_nothing_is_settled(stage: Stage) -> None:
    stage.script([say("x")])
    await stage.open()
    frame = stage.gated.park(f"{FRAMES} text_delta")
    operation = await stage.accept()
    driving = stage.drive(operation)
    await frame.reached()
    frame.fail(OSError("disk full"))
    (failure,) = await asyncio.gather(driving, return_exceptions=True)
    assert type(failure).__name__ == "HarnessFault"
    assert not any(line.startswith("TX entry assistant") for line in stage.journal)
    assert "fault" in stage.journal


async def test_the_stream_is_closed_before_its_response_is_settled(stage: Stage) -> None:
    class Provider(ScriptedProvider):
        async def _run(self, *arguments: Any) -> AsyncGenerator[AssistantMessageEvent, None]:
            try:
                async for event in super()._run(*arguments):
                    yield event
            finally:
                stage.journal.append("connection closed")

    await stage.script([]).open()
    stage.registry.register(stage.model, Provider([say("x")], stage.clock))
    await stage.prompt()
    closed = stage.journal.index("connection closed")
    settled = next(i for i, line in enumerate(stage.journal) if line.startswith("TX entry assist"))
    assert closed < settled
