"""The phases of one tool call: prepare, clear, execute, finalize — each between durable boundaries (§5.7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import msgspec
from jsonschema import Draft202012Validator
from jsonschema.protocols import Validator
from jsonschema.validators import (
    validator_for,  # pyright: ignore[reportUnknownVariableType]  # untyped in the library
)

from harness.codec import JsonValue, encode_str, foreign_json
from harness.errors import InvalidArgument
from harness.messages import (
    AgentToolResult,
    InputContent,
    TextContent,
    ToolCall,
    ToolResultMessage,
    safe_tool_result,
    text_result,
)
from harness.tools.protocol import AgentTool
from harness.usage import Usage


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A call whose tool exists and whose arguments fit its schema."""

    call: ToolCall
    tool: AgentTool[Any]  # Any: the application's tool context is opaque here
    arguments: dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class RefusedCall:
    """A call that never runs; `text` tells the model why."""

    call: ToolCall
    text: str
    terminate: bool = False


@dataclass(frozen=True, slots=True)
class ExecutedCall:
    """What the tool returned, or the error it raised."""

    result: AgentToolResult
    is_error: bool


@dataclass(frozen=True, slots=True)
class FinalizedCall:
    """The canonical outcome, after hooks."""

    call: ToolCall
    result: AgentToolResult
    is_error: bool
    terminate: bool


def prepare_call(call: ToolCall, tools: Mapping[str, AgentTool[Any]]) -> PreparedCall | RefusedCall:
    """Look the tool up, let it prepare the arguments, validate them."""
    tool = tools.get(call.name)
    if tool is None:
        return RefusedCall(call, f'The tool "{call.name}" is not available.')
    try:
        arguments = storable_arguments(tool.prepare_arguments(dict(call.arguments)))
        validate_arguments(tool, arguments)
    except Exception as error:  # noqa: BLE001 -- preparation is the application's code: any failure refuses
        return RefusedCall(call, f'Invalid arguments for "{call.name}": {error}')
    return PreparedCall(call, tool, arguments)


def storable_arguments(arguments: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A storable copy of arguments; raises `InvalidArgument` unless they are an object."""
    copied = foreign_json(arguments)
    if not isinstance(copied, dict):
        raise InvalidArgument("arguments must be an object")
    return copied


def validate_arguments(tool: AgentTool[Any], arguments: dict[str, JsonValue]) -> None:
    """Raise `InvalidArgument` with a readable message when arguments do not fit the schema."""
    validator = _validator(encode_str(tool.parameters))
    problems = [
        f"{'/'.join(str(part) for part in error.absolute_path) or 'arguments'}: {error.message}"
        for error in validator.iter_errors(arguments)
    ]
    if problems:
        raise InvalidArgument("; ".join(sorted(problems)[:5]))


@lru_cache(maxsize=512)
def _validator(schema_json: str) -> Validator:
    schema = msgspec.json.decode(schema_json)
    kind: type[Validator] = validator_for(schema, default=Draft202012Validator)
    kind.check_schema(schema)
    return kind(schema)


async def execute_call(
    start: Callable[[], asyncio.Task[AgentToolResult]],
) -> ExecutedCall:
    """Await an admitted execution; an exception becomes an error result for the model."""
    task = start()
    try:
        result = await task
        return ExecutedCall(safe_tool_result(result), is_error=False)
    except asyncio.CancelledError:
        if not task.cancelled():
            task.cancel()
            raise
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            raise
        # The tool cancelled itself; that is its failure, not ours.
        return ExecutedCall(text_result("The tool was cancelled."), is_error=True)
    except Exception as error:  # noqa: BLE001 -- expected: tools report failure by raising
        return ExecutedCall(text_result(f"{error}" or type(error).__name__), is_error=True)


def finalize_call(
    call: ToolCall,
    executed: ExecutedCall,
    *,
    content: tuple[InputContent, ...] | None = None,
    details: JsonValue = None,
    is_error: bool | None = None,
    usage: Usage | None = None,
    terminate: bool | None = None,
) -> FinalizedCall:
    """Apply an after_tool patch field by field; None keeps what the tool said."""
    result = executed.result
    changes: dict[str, Any] = {}
    if content is not None:
        changes["content"] = tuple(content)
    if details is not None:
        changes["details"] = foreign_json(details)
    if usage is not None:
        changes["usage"] = usage
    if changes:
        result = msgspec.structs.replace(result, **changes)
    return FinalizedCall(
        call=call,
        result=result,
        is_error=executed.is_error if is_error is None else is_error,
        terminate=result.terminate if terminate is None else terminate,
    )


def without_termination(final: FinalizedCall) -> FinalizedCall:
    """The same outcome without its wish to end the run."""
    return replace(final, terminate=False)


def result_message(final: FinalizedCall, timestamp: int) -> ToolResultMessage:
    """The message that the outcome becomes."""
    return ToolResultMessage(
        tool_call_id=final.call.id,
        tool_name=final.call.name,
        content=final.result.content,
        is_error=final.is_error,
        timestamp=timestamp,
        details=final.result.details,
        usage=final.result.usage,
        added_tool_names=final.result.added_tool_names,
    )


def synthetic_message(call: ToolCall, text: str, timestamp: int) -> ToolResultMessage:
    """An error result that the harness itself gives; it invents no details."""
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(TextContent(text=text),),
        is_error=True,
        timestamp=timestamp,
    )


INTERRUPTED_TOOL = (
    "The tool was interrupted when its process stopped. It is not known whether its work was done, "
    "partly done or not done, and it was not run again."
)
CHECKPOINT_NOTE = "The content above is the latest saved progress; newer output may be missing. "


def interrupted_message(
    call: ToolCall, checkpoint: AgentToolResult | None, timestamp: int
) -> ToolResultMessage:
    """The result of a call whose outcome nobody knows, with its latest saved progress if any."""
    if checkpoint is None:
        return synthetic_message(call, INTERRUPTED_TOOL, timestamp)
    return ToolResultMessage(
        tool_call_id=call.id,
        tool_name=call.name,
        content=(*checkpoint.content, TextContent(text=CHECKPOINT_NOTE + INTERRUPTED_TOOL)),
        is_error=True,
        timestamp=timestamp,
        details=checkpoint.details,
        usage=checkpoint.usage,
    )
