"""Restarts in the middle of a response: they cost no retries while output arrives, but not for ever."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from harness.context import BACKGROUND
from harness.entries import MessageEntry
from harness.environment import Environment
from harness.errors import HarnessClosed
from harness.messages import AssistantMessage
from harness.models.registry import ModelRegistry
from harness.models.script import (
    At,
    Gate,
    ScriptedRequest,
    ScriptedResponse,
    Text,
    fail,
    say,
    steps,
)
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.operation.results import DriveSettled, RunOutcome
from harness.operation.transitions.assistant import FREE_INTERRUPTIONS, INTERRUPTED
from harness.result import Ok
from harness.runtime.core import HarnessOptions
from harness.runtime.drive import DriveOptions
from harness.runtime.harness import AgentHarness
from harness.runtime.requests import PromptRequest
from harness.session.session import Session
from harness.settings import RetryPolicy
from harness.storage.memory import MemoryState, MemoryStorage
from harness.storage.metadata import SessionMetadata
from harness.storage.writes import set_value
from harness.testing.virtual_clock import virtual_environment

RETRIES = 2


class _Restarts:
    """One session whose harness is closed and opened again, each time with a new script."""

    def __init__(self) -> None:
        self.environment: Environment = virtual_environment()
        self.state = MemoryState()
        self.operation_id = ""

    async def open(self, respond: ScriptedResponse) -> AgentHarness:
        storage = MemoryStorage(self.environment.clock, self.state)
        if not self.state.values:
            await storage.commit(
                (
                    set_value(values.lane_leaf("main"), None),
                    set_value(values.lane_state("main"), IDLE_LANE),
                ),
                BACKGROUND,
            )
        model = scripted_model()

        def script(request: ScriptedRequest) -> ScriptedResponse:
            return respond

        provider = ScriptedProvider(script, self.environment.clock)
        session = Session(storage, SessionMetadata(id="s", created_at=0), self.environment)
        options = HarnessOptions(
            models=ModelRegistry([(model, provider)]),
            model=model,
            retry=RetryPolicy(max_retries=RETRIES, base_delay_ms=10),
        )
        harness, _ = await AgentHarness.create(session, options, BACKGROUND)
        return harness

    async def cut(self, *, text: str | None = "some output ") -> None:
        """Start, or go on, and close the harness in the middle of the stream."""
        gate = Gate()
        parts = (At(gate),) if text is None else (Text(text), At(gate))
        harness = await self.open(steps(*parts))
        if not self.operation_id:
            admitted = await harness.accept(PromptRequest(prompt="go"), BACKGROUND)
            assert isinstance(admitted, Ok)
            self.operation_id = admitted.value.operation_id
        driving = asyncio.ensure_future(
            harness.drive(DriveOptions(self.operation_id, wait_for_retry=True), BACKGROUND)
        )
        reached = asyncio.ensure_future(gate.reached())
        await asyncio.wait((driving, reached), return_when=asyncio.FIRST_COMPLETED)
        reached.cancel()
        # Frames that were queued before the close are on the line; let them become durable.
        await harness.inspect_execution(BACKGROUND)
        await harness.close(BACKGROUND)
        with suppress(HarnessClosed):
            await driving

    async def finish(self, respond: ScriptedResponse) -> RunOutcome:
        """Drive to the end."""
        harness = await self.open(respond)
        driven = await harness.drive(
            DriveOptions(self.operation_id, wait_for_retry=True), BACKGROUND
        )
        await harness.close(BACKGROUND)
        assert isinstance(driven, Ok)
        assert isinstance(driven.value, DriveSettled)
        assert isinstance(driven.value.outcome, RunOutcome)
        return driven.value.outcome

    def responses(self) -> list[AssistantMessage]:
        return [
            entry.message
            for entry in self.state.order
            if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage)
        ]


async def test_ten_restarts_with_output_between_them_spend_no_retry() -> None:
    restarts = _Restarts()
    for _ in range(10):
        await restarts.cut()
    outcome = await restarts.finish(say("done"))
    assert outcome.kind == "completed"
    reasons = [message.error_message for message in restarts.responses()]
    assert reasons == [INTERRUPTED] * 10 + [None]


async def test_after_restarts_the_whole_retry_budget_is_still_there() -> None:
    restarts = _Restarts()
    for _ in range(10):
        await restarts.cut()
    outcome = await restarts.finish(fail("overloaded", kind="retryable"))
    assert outcome.kind == "failed"
    failures = [m for m in restarts.responses() if m.error_message == "overloaded"]
    assert len(failures) == RETRIES + 1


async def test_a_request_that_dies_before_any_output_spends_its_retries() -> None:
    restarts = _Restarts()
    for _ in range(RETRIES + 1):
        await restarts.cut(text=None)
    outcome = await restarts.finish(say("never asked"))
    assert outcome.kind == "failed"
    assert len(restarts.responses()) == RETRIES + 1


async def test_interruptions_without_end_run_out_of_retries() -> None:
    restarts = _Restarts()
    for _ in range(FREE_INTERRUPTIONS + RETRIES + 1):
        await restarts.cut()
    outcome = await restarts.finish(say("never asked"))
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert outcome.error.message == INTERRUPTED
