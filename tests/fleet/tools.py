"""Tools for fleet tests. What they did is written to a file that outlives every process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from harness.messages import AgentToolResult, text_result
from harness.tools.protocol import AgentTool, FunctionTool, ToolCallRequest

JOURNAL = "LANEWAY_TEST_JOURNAL"


def note(line: str) -> None:
    """Append one line; short appends of several processes do not mix."""
    descriptor = os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


async def _slow(request: ToolCallRequest[Any]) -> AgentToolResult:
    who = f"{request.arguments['tag']} {request.invocation.invocation_id} {os.getpid()}"
    seconds = float(str(request.arguments["seconds"]))
    note(f"start {who}")
    try:
        for step in range(4):
            await asyncio.sleep(seconds / 4)
            request.on_update(text_result(f"step {step}"), checkpoint=True)
    except asyncio.CancelledError:
        note(f"cut {who}")
        raise
    note(f"end {who}")
    return text_result("the work is done")


async def _quick(_request: ToolCallRequest[Any]) -> AgentToolResult:
    return text_result("the work is done")


async def _suicide(request: ToolCallRequest[Any]) -> AgentToolResult:
    who = f"{request.arguments['tag']} {request.invocation.invocation_id} {os.getpid()}"
    note(f"start {who}")
    os.kill(os.getpid(), signal.SIGKILL)
    return text_result("never reached")


async def _block(request: ToolCallRequest[Any]) -> AgentToolResult:
    """As an application must not do it: nothing else runs in its process meanwhile."""
    who = f"{request.arguments['tag']} {request.invocation.invocation_id} {os.getpid()}"
    note(f"start {who}")
    time.sleep(float(str(request.arguments["seconds"])))  # noqa: ASYNC251 -- that is the point
    note(f"end {who}")
    return text_result("the work is done")


async def _stubborn(request: ToolCallRequest[Any]) -> AgentToolResult:
    """Does not end when it is told to."""
    who = f"{request.arguments['tag']} {request.invocation.invocation_id} {os.getpid()}"
    note(f"start {who}")
    while True:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            note(f"cut {who}")


_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"seconds": {"type": "number"}, "tag": {"type": "string"}},
    "required": ["seconds", "tag"],
}


def registry() -> list[AgentTool[Any]]:
    """The tools of these tests."""
    return [
        FunctionTool("slow_never", "Takes a while.", dict(_SCHEMA), _slow, replay="never"),
        FunctionTool("slow_safe", "Takes a while.", dict(_SCHEMA), _slow, replay="safe"),
        FunctionTool("quick", "Takes no time.", dict(_SCHEMA), _quick, replay="safe"),
        FunctionTool("block", "Takes everything.", dict(_SCHEMA), _block, replay="never"),
        FunctionTool("stubborn", "Takes for ever.", dict(_SCHEMA), _stubborn, replay="never"),
        FunctionTool("suicide", "Ends its process.", dict(_SCHEMA), _suicide, replay="safe"),
    ]
