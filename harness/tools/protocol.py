"""What a tool is: a name, a schema, a replay promise and an async function (§3.8, §5.2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from harness.codec import JsonValue
from harness.context import Context
from harness.messages import AgentToolResult
from harness.settings import ReplayPolicy

TContext_contra = TypeVar("TContext_contra", contravariant=True)
TContext = TypeVar("TContext")


class ToolInvocation(Protocol):
    """One logical call. The id is stable across safe replay and scopes the durable memos."""

    @property
    def invocation_id(self) -> str:
        """Session-unique id of the call; equals the id its result entry will have."""
        ...

    @property
    def operation_id(self) -> str:
        """The run that made the call."""
        ...

    @property
    def turn_id(self) -> str:
        """The turn that made the call."""
        ...

    def get_memo(self, name: str) -> Awaitable[JsonValue | None]:
        """The durable memo of that name, or None. Raises after the call has settled."""
        ...

    def set_memo(self, name: str, memo: JsonValue | None) -> Awaitable[None]:
        """Store a memo durably (None deletes it); await it. Raises after the call has settled."""
        ...


class ToolUpdate(Protocol):
    """Reports progress: always seen live, and kept for recovery when `checkpoint` is set."""

    def __call__(self, partial: AgentToolResult, *, checkpoint: bool = False) -> None: ...


class AgentTool(Protocol[TContext_contra]):
    """A tool the harness can run. `replay` "safe" promises that running it twice is harmless."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def parameters(self) -> dict[str, JsonValue]:
        """JSON Schema of the arguments."""
        ...

    @property
    def replay(self) -> ReplayPolicy: ...

    def prepare_arguments(self, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Normalize the model's arguments; deterministic. Raises to refuse the call."""
        ...

    async def execute(
        self,
        tool_call_id: str,
        arguments: dict[str, JsonValue],
        on_update: ToolUpdate,
        tool_context: TContext_contra,
        invocation: ToolInvocation,
        context: Context,
    ) -> AgentToolResult:
        """Do the work. An exception becomes an error result; `context.abort_signal` asks to stop."""
        ...


class FunctionTool(Generic[TContext]):
    """A tool made from an async function that takes a `ToolCallRequest`."""

    def __init__(
        self,
        name: str,
        description: str,
        parameters: dict[str, JsonValue],
        execute: Callable[[ToolCallRequest[TContext]], Awaitable[AgentToolResult]],
        *,
        replay: ReplayPolicy = "never",
        prepare: Callable[[dict[str, JsonValue]], dict[str, JsonValue]] | None = None,
    ) -> None:
        self.name = name
        self.description = description
        self.parameters = parameters
        self.replay: ReplayPolicy = replay
        self._execute = execute
        self._prepare = prepare

    def prepare_arguments(self, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return arguments if self._prepare is None else self._prepare(arguments)

    async def execute(
        self,
        tool_call_id: str,
        arguments: dict[str, JsonValue],
        on_update: ToolUpdate,
        tool_context: TContext,
        invocation: ToolInvocation,
        context: Context,
    ) -> AgentToolResult:
        return await self._execute(
            ToolCallRequest(tool_call_id, arguments, on_update, tool_context, invocation, context)
        )


class ToolCallRequest(Generic[TContext]):
    """Everything one execution of a function tool may use."""

    __slots__ = ("arguments", "context", "invocation", "on_update", "tool_call_id", "tool_context")

    def __init__(
        self,
        tool_call_id: str,
        arguments: dict[str, JsonValue],
        on_update: ToolUpdate,
        tool_context: TContext,
        invocation: ToolInvocation,
        context: Context,
    ) -> None:
        self.tool_call_id = tool_call_id
        self.arguments = arguments
        self.on_update = on_update
        self.tool_context = tool_context
        self.invocation = invocation
        self.context = context
