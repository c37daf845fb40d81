"""Makes any operation state durable without driving an operation there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from harness.context import BACKGROUND
from harness.entries import EntryPayload, MessagePayload, NewEntry
from harness.frames import AssistantMessageFrame
from harness.messages import (
    AgentMessage,
    AssistantMessage,
    DeferredHandle,
    StopReason,
    TextContent,
    ToolCall,
    UserMessage,
    empty_assistant,
)
from harness.operation import values
from harness.operation.lane_state import LaneState
from harness.operation.payloads import PendingMessage
from harness.operation.state import (
    EMPTY_INBOX,
    RUNNING,
    CancelRequested,
    Control,
    GenerationContext,
    Inbox,
    OperationMeta,
    OperationState,
    RunIntent,
    RunPhase,
    RunSettings,
    RunState,
)
from harness.session.session import MAIN_LANE
from harness.settings import (
    CompactionSettings,
    LaneConfiguration,
    NormalizedRetryPolicy,
    StreamOptions,
    ToolExecution,
)
from harness.storage.writes import Write, append_list, insert_entry, insert_usage, set_value
from harness.usage import NewUsageRow
from tests.runtime.stage import Stage

HANDLE = DeferredHandle(id="job", provider="scripted", model_id="scripted", api="scripted")
CANCELLED = CancelRequested(requested_at=1, drained_steer=(), drained_follow_up=())


@dataclass
class Built:
    """A session that is being written by hand: a prompt, then whatever a test adds."""

    stage: Stage
    tools: tuple[str, ...] = ()
    writes: list[Write] = field(default_factory=list[Write])
    leaf: str | None = None

    def __post_init__(self) -> None:
        self.operation = self.new_id()
        self.step = self.new_id()
        self.prompt = self.entry(MessagePayload(message=self.user("go")))

    def new_id(self) -> str:
        return self.stage.environment.ids.next()

    def now(self) -> int:
        return self.stage.clock.now_ms()

    def user(self, text: str) -> UserMessage:
        return UserMessage(content=text, timestamp=self.now())

    def entry(self, payload: EntryPayload) -> str:
        """Place an entry below the leaf; an assistant's also gets its ledger row."""
        made = self.new_id()
        self.writes.append(insert_entry(NewEntry(made, self.leaf, payload)))
        if isinstance(payload, MessagePayload) and isinstance(payload.message, AssistantMessage):
            row = NewUsageRow(id=self.new_id(), usage=payload.message.usage, entry_id=made)
            self.writes.append(insert_usage(row))
        self.leaf = made
        return made

    def assistant(
        self,
        *content: TextContent | ToolCall,
        stop: StopReason = "stop",
        handle: DeferredHandle | None = None,
    ) -> str:
        """Place a settled response."""
        return self.entry(MessagePayload(message=self.response(*content, stop=stop, handle=handle)))

    def response(
        self,
        *content: TextContent | ToolCall,
        stop: StopReason = "stop",
        handle: DeferredHandle | None = None,
    ) -> AssistantMessage:
        """A response of the stage's model."""
        model = self.stage.model
        empty = empty_assistant(
            provider=model.provider,
            model=model.model_id,
            api=model.api,
            timestamp=self.now(),
            stop_reason=stop,
        )
        return msgspec.structs.replace(empty, content=content, deferred=handle)

    def calls(self, *names: str) -> str:
        """Place a response that calls these tools; their source indexes count from 0."""
        content = [ToolCall(id=f"c{i}", name=name, arguments={}) for i, name in enumerate(names)]
        return self.assistant(*content, stop="toolUse")

    def pending(self, message: AgentMessage) -> str:
        """Content that waits for its place."""
        made = self.new_id()
        self.writes.append(set_value(values.pending_entry(made), PendingMessage(payload=message)))
        return made

    def frames(self, response_id: str, frames: Sequence[AssistantMessageFrame]) -> None:
        """A committed stream prefix."""
        address = values.pending_assistant_frames(self.operation, response_id)
        self.writes += [append_list(address, frame) for frame in frames]

    @property
    def configuration(self) -> LaneConfiguration:
        return LaneConfiguration(
            model=self.stage.model.identity, thinking_level="off", active_tool_names=self.tools
        )

    def context(self, *, attempts: int = 2) -> GenerationContext:
        """What a generation step captured."""
        return GenerationContext(
            step_id=self.step,
            trigger_entry_id=self.prompt,
            configuration=self.configuration,
            stream_options=StreamOptions(),
            retry_policy=NormalizedRetryPolicy(max_attempts=attempts, base_delay_ms=1_000),
            overflow_recovery_used=False,
        )

    def run(
        self,
        phase: RunPhase,
        *,
        control: Control = RUNNING,
        inbox: Inbox = EMPTY_INBOX,
        latest: str | None = None,
        execution: ToolExecution = "parallel",
        compaction: CompactionSettings | None = None,
    ) -> RunState:
        """A run in some phase."""
        return RunState(
            control=control,
            settings=RunSettings(
                compaction=compaction or CompactionSettings(),
                steering_mode="one-at-a-time",
                follow_up_mode="one-at-a-time",
                tool_execution=execution,
            ),
            phase=phase,
            inbox=inbox,
            latest_assistant_entry_id=latest,
        )

    # Any: options of the harness; intents of other kinds.
    async def durable(self, state: OperationState, *, intent: Any = None, **changes: Any) -> str:
        """Write it all in one transaction and attach a harness to it; returns the operation's id."""
        meta = OperationMeta(
            operation_id=self.operation,
            lane=MAIN_LANE,
            source_leaf_id=self.leaf if intent is not None else None,
            started_at=self.now(),
            intent=intent or RunIntent(prompt_entry_ids=(self.prompt,)),
        )
        await self.stage.memory.commit(
            (
                *self.writes,
                set_value(values.lane_config(MAIN_LANE), self.configuration),
                set_value(values.lane_leaf(MAIN_LANE), self.leaf),
                set_value(values.operation_meta(self.operation), meta),
                set_value(values.operation_state(self.operation), state),
                set_value(
                    values.lane_state(MAIN_LANE),
                    LaneState(current_operation_id=self.operation, pending_next_run=()),
                ),
            ),
            BACKGROUND,
        )
        await self.stage.open(**changes)
        return self.operation
