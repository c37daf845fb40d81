"""Tools for sessions in tests: they can be held in the middle, and they count what they did."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from typing import Any

from harness.messages import AgentToolResult, text_result
from harness.tools.protocol import FunctionTool, ToolCallRequest


class Gate:
    """Where a tool stops until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.release = asyncio.Event()
        self.thread_release = threading.Event()
        self.starts = 0
        self.ends = 0


GATES: dict[str, Gate] = defaultdict(Gate)


async def _gated(request: ToolCallRequest[Any]) -> AgentToolResult:
    gate = GATES[str(request.arguments["gate"])]
    gate.starts += 1
    gate.entered.set()
    await gate.release.wait()
    gate.ends += 1
    return text_result("passed")


async def _stubborn(request: ToolCallRequest[Any]) -> AgentToolResult:
    gate = GATES[str(request.arguments["gate"])]
    gate.starts += 1
    gate.entered.set()
    while not gate.release.is_set():
        try:
            await gate.release.wait()
        except asyncio.CancelledError:
            request.on_update(text_result("still here"), checkpoint=True)
    request.on_update(text_result("nearly done"), checkpoint=True)
    gate.ends += 1
    return text_result("too late")


async def _threaded(request: ToolCallRequest[Any]) -> AgentToolResult:
    gate = GATES[str(request.arguments["gate"])]
    gate.starts += 1
    gate.entered.set()
    await asyncio.to_thread(gate.thread_release.wait)
    gate.ends += 1
    return text_result("too late")


_SCHEMA = {"type": "object", "properties": {"gate": {"type": "string"}}, "required": ["gate"]}

registry = [
    FunctionTool[Any]("gated", "Waits at a gate.", _SCHEMA, _gated, replay="never"),
    FunctionTool[Any]("gated_safe", "Waits at a gate.", _SCHEMA, _gated, replay="safe"),
    FunctionTool[Any]("stubborn", "Ends when it wants.", _SCHEMA, _stubborn, replay="never"),
    FunctionTool[Any]("threaded", "Waits in a thread.", _SCHEMA, _threaded, replay="never"),
]
