"""Makes the options of a session's harness: its agent's profile, the configured models, the tools."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from harness.clock import Clock
from harness.codec import decode
from harness.errors import InvalidArgument
from harness.messages import ThinkingLevel
from harness.models.configured import ConfiguredModels, build_models
from harness.models.protocol import Model
from harness.runtime.core import HarnessOptions
from harness.runtime.resources import PromptTemplate, Resources, Skill
from harness.settings import (
    CompactionSettings,
    ModelIdentity,
    QueueMode,
    RetryPolicy,
    StreamOptions,
    ToolExecution,
)
from harness.tools.protocol import AgentTool
from storage_pg.storage import Pool, fetch_from
from workers.settings import Settings

# A profile that changed is used by sessions that are claimed this many seconds later.
_CACHE_SECONDS = 2.0


class AgentProfile(
    msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True
):
    """What a tenant's agent is; None and absent mean the deployment's default.

    `tools` names the tools that a session of this agent may use.
    """

    system_prompt: str | None = None
    model: ModelIdentity | None = None
    thinking_level: ThinkingLevel = "off"
    tools: tuple[str, ...] | None = None
    skills: tuple[Skill, ...] = ()
    prompt_templates: tuple[PromptTemplate, ...] = ()
    compaction: CompactionSettings = CompactionSettings()
    retry: RetryPolicy | None = None
    stream_options: StreamOptions = StreamOptions()
    steering_mode: QueueMode = "one-at-a-time"
    follow_up_mode: QueueMode = "one-at-a-time"
    tool_execution: ToolExecution = "parallel"


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool learns of where it runs."""

    tenant_id: str
    session_id: str
    agent: str | None


@dataclass(frozen=True, slots=True)
class _Cached:
    profile: AgentProfile
    until: float


class Agents:
    """Builds harness options. One per process; owns the connections to the model providers."""

    def __init__(self, settings: Settings, pool: Pool, clock: Clock) -> None:
        self._settings = settings
        self._pool = pool
        self._clock = clock
        self._models: ConfiguredModels = build_models(settings.model_entries, os.environ, clock)
        self._tools = load_tools(settings.tools)
        self._profiles: dict[tuple[str, str], _Cached] = {}
        self._default = self._resolve(settings.default_identity)

    async def close(self) -> None:
        """Close the providers' connections."""
        await self._models.aclose()

    def knows(self, identity: ModelIdentity) -> bool:
        """Whether a model of that name is configured."""
        return self._models.registry.resolve(identity) is not None

    async def options(self, tenant_id: str, session_id: str, agent: str | None) -> HarnessOptions:
        """The options of one session. An agent that does not exist any more means the defaults."""
        profile = AgentProfile() if agent is None else await self._profile(tenant_id, agent)
        model = self._default
        if profile.model is not None:
            model = self._models.registry.resolve(profile.model) or self._default
        settings = self._settings
        tools = tuple(self._tools.values())
        if profile.tools is not None:
            tools = tuple(tool for tool in tools if tool.name in profile.tools)
        return HarnessOptions(
            models=self._models.registry,
            model=model,
            thinking_level=profile.thinking_level,
            tools=tools,
            tool_context=ToolContext(tenant_id, session_id, agent),
            system_prompt=(
                settings.system_prompt if profile.system_prompt is None else profile.system_prompt
            ),
            resources=Resources(skills=profile.skills, prompt_templates=profile.prompt_templates),
            stream_options=profile.stream_options,
            retry=profile.retry
            or RetryPolicy(max_retries=settings.retry_max, base_delay_ms=settings.retry_base_ms),
            compaction=profile.compaction,
            steering_mode=profile.steering_mode,
            follow_up_mode=profile.follow_up_mode,
            tool_execution=profile.tool_execution,
        )

    def _resolve(self, identity: ModelIdentity) -> Model:
        model = self._models.registry.resolve(identity)
        if model is None:
            raise InvalidArgument(
                f"the default model {identity.provider}/{identity.model_id} is not configured"
            )
        return model

    async def _profile(self, tenant_id: str, name: str) -> AgentProfile:
        key = (tenant_id, name)
        now = self._clock.monotonic()
        cached = self._profiles.get(key)
        if cached is not None and now < cached.until:
            return cached.profile
        rows = await fetch_from(self._pool, "agent_profile", key)
        text = cast("str", rows[0][1]) if rows else "{}"
        profile = decode(text, AgentProfile)
        if len(self._profiles) > 1_000:
            self._profiles.clear()
        self._profiles[key] = _Cached(profile, now + _CACHE_SECONDS)
        return profile


def load_tools(name: str | None) -> dict[str, AgentTool[Any]]:
    """The tools that `package.module:attribute` names: a mapping, an iterable, or a function that
    returns one. Raises `InvalidArgument` when there are none."""
    if name is None:
        return {}
    module_name, separator, attribute = name.partition(":")
    if not separator:
        raise InvalidArgument("LANEWAY_TOOLS is written package.module:attribute")
    try:
        found: Any = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidArgument(f"cannot load the tools {name}: {error}") from error
    # Any: an application's own registry, whose shape is checked here.
    registry: Any = found() if callable(found) else found
    tools: Iterable[AgentTool[Any]] = (
        cast("Mapping[str, AgentTool[Any]]", registry).values()
        if isinstance(registry, Mapping)
        else registry
    )
    by_name: dict[str, AgentTool[Any]] = {}
    for tool in tools:
        if tool.name in by_name:
            raise InvalidArgument(f"two tools are named {tool.name!r}")
        by_name[tool.name] = tool
    return by_name
