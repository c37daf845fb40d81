"""A harness over the real model server, with turns that a test may take over to steer the story."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from app.local_model import MODEL_ID
from harness.compaction.summarize import SYSTEM_PROMPT
from harness.context import BACKGROUND
from harness.entries import CompactionEntry, Entry, MessageEntry
from harness.environment import Environment
from harness.messages import AssistantMessage, DeferredHandle
from harness.models.protocol import AssistantStream, Model, ModelContext, RequestOptions
from harness.models.pydantic_ai import PydanticAIProvider
from harness.models.pydantic_ai_client import Api, Endpoint
from harness.models.registry import ModelRegistry
from harness.models.script import ScriptedResponse
from harness.models.scripted import ScriptedProvider
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.operation.results import RunOutcome
from harness.result import Ok
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.session.session import Session
from harness.settings import CompactionSettings, StreamOptions
from harness.storage.memory import MemoryState, MemoryStorage
from harness.storage.metadata import SessionMetadata
from harness.storage.writes import set_value
from harness.tools.protocol import FunctionTool
from tests.real.conftest import WINDOW

Takeover = Callable[[ModelContext], ScriptedResponse | None]


def _nothing(_: ModelContext) -> ScriptedResponse | None:
    return None


@dataclass
class Steered:
    """The real provider; `takeover` may answer a request in its place, but never a summary's."""

    real: PydanticAIProvider
    takeover: Takeover = _nothing
    summaries: list[ModelContext] = field(default_factory=list)
    answered: list[ModelContext] = field(default_factory=list)

    def stream(
        self, model: Model, context: ModelContext, options: RequestOptions
    ) -> AssistantStream:
        if context.system_prompt == SYSTEM_PROMPT:
            self.summaries.append(context)
            return self.real.stream(model, context, options)
        taken = self.takeover(context)
        if taken is not None:
            return ScriptedProvider([taken]).stream(model, context, options)
        self.answered.append(context)
        return self.real.stream(model, context, options)

    def fetch_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> AssistantStream:
        raise NotImplementedError

    async def cancel_deferred(
        self, model: Model, handle: DeferredHandle, options: RequestOptions
    ) -> None:
        raise NotImplementedError


@dataclass
class Talk:
    """One session in memory, talking to the real model."""

    model: Model
    provider: Steered
    state: MemoryState
    harness: AgentHarness

    async def say(self, text: str) -> RunOutcome:
        """Run one prompt to its end."""
        said = await self.harness.prompt(text, BACKGROUND)
        assert isinstance(said, Ok), said
        assert isinstance(said.value, RunOutcome)
        return said.value

    def entries(self) -> list[Entry]:
        """All entries in the order they were written."""
        return list(self.state.order)

    def compactions(self) -> list[CompactionEntry]:
        """The compactions in the tree."""
        return [entry for entry in self.state.order if isinstance(entry, CompactionEntry)]

    def responses(self) -> list[AssistantMessage]:
        """All responses, the failed ones too."""
        return [
            entry.message
            for entry in self.state.order
            if isinstance(entry, MessageEntry) and isinstance(entry.message, AssistantMessage)
        ]


@asynccontextmanager
async def talking(
    url: str,
    api: Api,
    *tools: FunctionTool[None],
    compaction: CompactionSettings,
    window: int = WINDOW,
    max_tokens: int = 32,
    answer_tokens: int = 16,
) -> AsyncIterator[Talk]:
    """A harness on the real model for the length of the block; answers take `answer_tokens`."""
    model = Model(
        provider="local", model_id=MODEL_ID, api=api, context_window=window, max_tokens=max_tokens
    )
    environment = Environment.system()
    state = MemoryState()
    storage = MemoryStorage(environment.clock, state)
    await storage.commit(
        (
            set_value(values.lane_leaf("main"), None),
            set_value(values.lane_state("main"), IDLE_LANE),
        ),
        BACKGROUND,
    )
    real = PydanticAIProvider(Endpoint(api=api, base_url=f"{url}/v1"))
    provider = Steered(real)
    harness, _ = await AgentHarness.create(
        Session(storage, SessionMetadata(id="s", created_at=0), environment),
        HarnessOptions(
            models=ModelRegistry([(model, provider)]),
            model=model,
            tools=tools,
            stream_options=StreamOptions(temperature=0, max_tokens=answer_tokens),
            compaction=compaction,
        ),
        BACKGROUND,
    )
    try:
        yield Talk(model, provider, state, harness)
    finally:
        await harness.close(BACKGROUND)
        await real.aclose()
