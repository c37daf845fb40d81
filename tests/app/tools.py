"""Tools for the API's tests: one that waits for the test, one that returns what the world returns."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import Any

from harness.messages import AgentToolResult, TextContent, text_result
from harness.tools.protocol import AgentTool, FunctionTool, ToolCallRequest

_gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
started: Counter[str] = Counter()

FOREIGN = "nul \0, lone \ud800 surrogate, é, 🌊, \u2028 and \x7f"


def open_gate(name: str) -> None:
    """Let the tool that waits at this gate go on."""
    _gates[name].set()


async def _hold(call: ToolCallRequest[Any]) -> AgentToolResult:
    gate = str(call.arguments["gate"])
    started[gate] += 1
    call.on_update(text_result(f"waiting at {gate}"))
    await _gates[gate].wait()
    return text_result(f"gate {gate} is open")


async def _foreign(_call: ToolCallRequest[Any]) -> AgentToolResult:
    return AgentToolResult(
        content=(TextContent(text=FOREIGN), TextContent(text="x" * 1_000_000)),
        details={"nan": float("nan"), "infinity": float("-inf"), "big": 2**80, "text": FOREIGN},
    )


def tools() -> list[AgentTool[Any]]:
    """The registry."""
    text = {"type": "object", "properties": {"gate": {"type": "string"}}, "required": ["gate"]}
    return [
        FunctionTool("hold", "Wait.", dict(text), _hold),
        FunctionTool("foreign", "Return foreign text.", {"type": "object"}, _foreign),
    ]
