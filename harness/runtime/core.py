"""What all lanes of one harness share: registries, settings, hooks, events, fault and close state (§5.2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.context import Context
from harness.environment import Environment
from harness.errors import HarnessClosed, HarnessFault
from harness.messages import AgentMessage, ProviderMessage, ThinkingLevel
from harness.models.protocol import Model, Models
from harness.operation.events import Fault
from harness.operation.state import RunSettings
from harness.runtime.events import EventBus
from harness.runtime.hooks import Hooks
from harness.runtime.resources import Resources
from harness.session.line import observe
from harness.session.projection import EntryProjector
from harness.session.session import Session
from harness.settings import (
    CompactionSettings,
    LaneConfiguration,
    QueueMode,
    RetryPolicy,
    StreamOptions,
    ToolExecution,
    check_compaction,
    normalize_retry,
)
from harness.tools.protocol import AgentTool

if TYPE_CHECKING:
    from harness.runtime.lane import Lane

# Any: the application's tool context is opaque to the harness.
ToolContextSource: TypeAlias = Any
SystemPrompt: TypeAlias = "str | Callable[[Any, Context], str | Awaitable[str]]"
ToProviderMessages: TypeAlias = Callable[
    [tuple[AgentMessage, ...], Context],
    "Sequence[ProviderMessage] | Awaitable[Sequence[ProviderMessage]]",
]


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """How a harness is made. The three lane fields seed lanes without configuration (§5.2)."""

    models: Models
    model: Model
    thinking_level: ThinkingLevel = "off"
    active_tool_names: tuple[str, ...] | None = None
    tools: tuple[AgentTool[Any], ...] = ()
    tool_context: ToolContextSource = None
    system_prompt: SystemPrompt = ""
    resources: Resources = field(default_factory=Resources)
    stream_options: StreamOptions = field(default_factory=StreamOptions)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    steering_mode: QueueMode = "one-at-a-time"
    follow_up_mode: QueueMode = "one-at-a-time"
    tool_execution: ToolExecution = "parallel"
    # None: application messages and summaries become user text, the rest passes.
    to_provider_messages: ToProviderMessages | None = None
    entry_projectors: Mapping[str, EntryProjector] = field(
        default_factory=dict[str, EntryProjector]
    )


class Core:
    """The shared half of a harness."""

    def __init__(self, session: Session, options: HarnessOptions) -> None:
        normalize_retry(options.retry)
        check_compaction(options.compaction)
        self.session = session
        self.environment: Environment = session.environment
        self.models = options.models
        self.tools: dict[str, AgentTool[Any]] = {tool.name: tool for tool in options.tools}
        self.tool_context = options.tool_context
        self.system_prompt = options.system_prompt
        self.resources = options.resources
        self.stream_options = options.stream_options
        self.retry = options.retry
        self.compaction = options.compaction
        self.steering_mode: QueueMode = options.steering_mode
        self.follow_up_mode: QueueMode = options.follow_up_mode
        self.tool_execution: ToolExecution = options.tool_execution
        self.convert = options.to_provider_messages
        self.projectors = options.entry_projectors
        active = options.active_tool_names
        self.seed = LaneConfiguration(
            model=options.model.identity,
            thinking_level=options.thinking_level,
            active_tool_names=tuple(self.tools) if active is None else active,
        )
        self.events = EventBus()
        self.hooks = Hooks(self.events)
        self.lanes: dict[str, Lane] = {}
        self.faulted: HarnessFault | None = None
        self.closed = False
        self.settings_line = asyncio.Lock()
        self.on_fault: list[Callable[[HarnessFault], None]] = []
        self._detached: set[asyncio.Task[Any]] = set()

    @property
    def projected_types(self) -> frozenset[str]:
        """Custom entry types that reach the model's context."""
        return frozenset(self.projectors)

    def run_settings(self) -> RunSettings:
        """The global settings as a run captures them at acceptance."""
        return RunSettings(
            compaction=self.compaction,
            steering_mode=self.steering_mode,
            follow_up_mode=self.follow_up_mode,
            tool_execution=self.tool_execution,
        )

    def check(self) -> None:
        """Raise `HarnessFault` or `HarnessClosed` when the harness is not usable."""
        if self.faulted is not None:
            raise self.faulted
        if self.closed:
            raise HarnessClosed

    def fault(
        self, cause: BaseException, context: Context, lane: str | None = None
    ) -> HarnessFault:
        """Stop everything: a commit failed or an invariant broke (§4.8), on `lane` where it was on
        one. Returns the fault."""
        if self.faulted is not None:
            return self.faulted
        code = type(cause).__name__
        fault = HarnessFault(f"harness fault: {code}: {cause}", cause, lane)
        self.faulted = fault
        self.session.seal()
        delivery = self.events.emit_batch((Fault(code=code, message=str(cause)),), context)
        if delivery is not None:
            observe(delivery)
        for stopping in self.lanes.values():
            stopping.stop(fault)
        for listener in self.on_fault:
            listener(fault)
        return fault

    def detach(self, task: asyncio.Task[Any]) -> None:
        """Keep a task alive that nobody waits for, and observe its end."""
        self._detached.add(task)
        task.add_done_callback(self._detached.discard)
        observe(task)
