"""Constructors of every built-in address; core code never spells a namespace elsewhere (§1.3)."""

from __future__ import annotations

from typing import Any

from harness.codec import JsonValue
from harness.frames import AssistantMessageFrame
from harness.messages import AgentToolResult
from harness.operation.lane_state import LaneLastResult, LaneState
from harness.operation.payloads import PendingEntry, StructuralPreparation
from harness.operation.state import OperationMeta, OperationState
from harness.settings import LaneConfiguration
from harness.storage.address import Value, ValueList, list_of, value
from harness.storage.writes import CHECKPOINT_NAMESPACE, FRAME_NAMESPACE

LEAF_TYPE = str | None


def lane_leaf(lane: str) -> Value[str | None]:
    """Where the lane appends next."""
    return value(LEAF_TYPE, "pi.lane.leaf", lane)


def lane_config(lane: str) -> Value[LaneConfiguration]:
    """The lane's total configuration."""
    return value(LaneConfiguration, "pi.lane.config", lane)


def lane_state(lane: str) -> Value[LaneState]:
    """Current operation and next-run queue."""
    return value(LaneState, "pi.lane.state", lane)


def lane_last_result(lane: str) -> Value[LaneLastResult]:
    """The latest terminal outcome."""
    return value(LaneLastResult, "pi.lane.lastResult", lane)


def lane_leaf_inventory_prefix() -> Value[str | None]:
    """Scan prefix: one value per lane."""
    return value(LEAF_TYPE, "pi.lane.leaf")


def operation_meta(operation_id: str) -> Value[OperationMeta]:
    """Acceptance metadata, written once."""
    return value(OperationMeta, "pi.op.meta", operation_id)


def operation_state(operation_id: str) -> Value[OperationState]:
    """The total restart point."""
    return value(OperationState, "pi.op.state", operation_id)


def operation_tool_args(
    operation_id: str, step_id: str, source_index: int
) -> Value[dict[str, JsonValue]]:
    """The effective arguments of one call, written once at clearance."""
    return value(dict[str, Any], "pi.op.tool_args", f"{operation_id}:{step_id}:{source_index}")


def operation_tool_args_prefix(
    operation_id: str, step_id: str | None = None
) -> Value[dict[str, JsonValue]]:
    """Scan prefix: the arguments of an operation, or of one of its batches."""
    key = f"{operation_id}:" if step_id is None else f"{operation_id}:{step_id}:"
    return value(dict[str, Any], "pi.op.tool_args", key)


def operation_tool_memo(operation_id: str, invocation_id: str, name: str) -> Value[JsonValue]:
    """One memo of one tool invocation."""
    return value(Any, "pi.op.tool_memo", f"{operation_id}:{invocation_id}:{name}")


def operation_tool_memo_prefix(
    operation_id: str, invocation_id: str | None = None
) -> Value[JsonValue]:
    """Scan prefix: the memos of an operation, or of one invocation."""
    key = f"{operation_id}:" if invocation_id is None else f"{operation_id}:{invocation_id}:"
    return value(Any, "pi.op.tool_memo", key)


def operation_preparation(operation_id: str, task_id: str) -> Value[StructuralPreparation]:
    """The input of one structural task, written once."""
    return value(StructuralPreparation, "pi.op.preparation", f"{operation_id}:{task_id}")


def operation_preparation_prefix(operation_id: str) -> Value[StructuralPreparation]:
    """Scan prefix: the preparations of an operation."""
    return value(StructuralPreparation, "pi.op.preparation", f"{operation_id}:")


def pending_entry(entry_id: str) -> Value[PendingEntry]:
    """Complete content that waits for its place in the tree."""
    return value(PendingEntry, "pi.pending.entry", entry_id)


def pending_tool_output(operation_id: str, invocation_id: str) -> Value[AgentToolResult]:
    """The latest bounded progress checkpoint of a running tool."""
    return value(AgentToolResult, CHECKPOINT_NAMESPACE, f"{operation_id}:{invocation_id}")


def pending_tool_output_prefix(operation_id: str) -> Value[AgentToolResult]:
    """Scan prefix: the progress checkpoints of an operation."""
    return value(AgentToolResult, CHECKPOINT_NAMESPACE, f"{operation_id}:")


def pending_assistant_frames(
    operation_id: str, response_entry_id: str
) -> ValueList[AssistantMessageFrame]:
    """The committed stream prefix of one response."""
    return list_of(AssistantMessageFrame, FRAME_NAMESPACE, f"{operation_id}:{response_entry_id}")


SESSION_NAME: Value[str] = value(str, "pi.session.name")


def entry_label(entry_id: str) -> Value[str]:
    """The label of an entry."""
    return value(str, "pi.entry.label", entry_id)
