"""Two slow tools for the demonstration: one that may not be repeated, and one that may.

Each writes a line to the file in `LANEWAY_DEMO_TRACE` when it begins and when it ends, so that
anybody can count how often it really ran, and in which process.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from harness.codec import JsonValue
from harness.messages import AgentToolResult, text_result
from harness.tools.protocol import AgentTool, FunctionTool, ToolCallRequest

_LONGEST_SECONDS = 60
_COUNTING_SECONDS = 3


def _trace(what: str) -> None:
    file = os.environ.get("LANEWAY_DEMO_TRACE")
    if file is not None:
        with Path(file).open("a") as lines:
            lines.write(f"{what} {os.getpid()}\n")


def _parameters(**properties: str) -> dict[str, JsonValue]:
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


async def _slow_report(call: ToolCallRequest[Any]) -> AgentToolResult:
    topic, seconds = str(call.arguments["topic"]), call.arguments["seconds"]
    if not isinstance(seconds, int) or not 0 <= seconds <= _LONGEST_SECONDS:
        raise ValueError(f"seconds must be 0 to {_LONGEST_SECONDS}")
    _trace("begin slow_report")
    for second in range(1, seconds + 1):
        await asyncio.sleep(1)
        call.on_update(text_result(f"{second} of {seconds} seconds"), checkpoint=True)
    _trace("end slow_report")
    return text_result(f"Report on {topic}: finished after {seconds} seconds.")


async def _count_words(call: ToolCallRequest[Any]) -> AgentToolResult:
    text = str(call.arguments["text"])
    _trace("begin count_words")
    await asyncio.sleep(_COUNTING_SECONDS)
    _trace("end count_words")
    return text_result(f"{len(text.split())} words")


def tools() -> list[AgentTool[Any]]:
    """The registry that `LANEWAY_TOOLS=app.demo_tools:tools` names."""
    return [
        FunctionTool(
            "slow_report",
            "Write a report, slowly.",
            _parameters(topic="string", seconds="integer"),
            _slow_report,
            replay="never",
        ),
        FunctionTool(
            "count_words",
            "Count the words of a text.",
            _parameters(text="string"),
            _count_words,
            replay="safe",
        ),
    ]
