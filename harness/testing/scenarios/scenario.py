"""What a scenario consists of, and what most of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.models.protocol import Model
from harness.models.script import Script
from harness.models.scripted import scripted_model
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.runtime.requests import OperationRequest, PromptRequest
from harness.settings import CompactionSettings, RetryPolicy, StreamOptions, ToolExecution
from harness.testing.world import UserStep, World, registry
from harness.tools.protocol import FunctionTool

MakeTool = Callable[[World], FunctionTool[None]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One story. `options` is asked anew in every process; what must outlive one is in the world.

    `history` is said in the session before, `prepare` registers hooks in each process, `polls`
    drives a deferred response to its end.
    """

    name: str
    options: Callable[[World], HarnessOptions]
    request: Callable[[World], OperationRequest] = lambda world: PromptRequest(prompt="go")
    steps: tuple[UserStep, ...] = ()
    prepare: Callable[[World, AgentHarness], None] | None = None
    history: tuple[str, ...] = ()
    polls: bool = False


def options(
    world: World,
    script: Script,
    *tools: MakeTool,
    model: Model | None = None,
    compaction: CompactionSettings | None = None,
    stream_options: StreamOptions | None = None,
    tool_execution: ToolExecution = "parallel",
) -> HarnessOptions:
    """Harness options with a scripted model and world tools; retries enough for several deaths."""
    chosen = scripted_model() if model is None else model
    # Any: world tools take no tool context.
    made: tuple[FunctionTool[Any], ...] = tuple(make(world) for make in tools)
    return HarnessOptions(
        models=registry(world, script, chosen),
        model=chosen,
        tools=made,
        retry=RetryPolicy(max_retries=9, base_delay_ms=1_000),
        compaction=compaction or CompactionSettings(),
        stream_options=stream_options or StreamOptions(),
        tool_execution=tool_execution,
    )
