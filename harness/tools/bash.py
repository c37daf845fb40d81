"""The built-in shell tool: bounded output, live progress, checkpoints, and nothing left running (§3.8)."""

from __future__ import annotations

import asyncio
import codecs
import os
import signal
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from harness.clock import Clock, SystemClock
from harness.codec import JsonValue
from harness.context import Context
from harness.errors import HarnessError
from harness.messages import AgentToolResult, TextContent
from harness.settings import ReplayPolicy
from harness.tools.protocol import ToolInvocation, ToolUpdate

UPDATE_SECONDS = 0.1
CHECKPOINT_SECONDS = 2.0
KILL_GRACE_SECONDS = 2.0
DRAIN_SECONDS = 0.5
MAX_OUTPUT_CHARS = 50_000


class CommandFailed(HarnessError):
    """The command did not succeed; the text is what the model is told."""


@dataclass(frozen=True, slots=True)
class BashLimits:
    """Bounds of one command: seconds it may run by default and at most, characters kept of its output."""

    default_timeout: float = 120.0
    max_timeout: float = 3_600.0
    output_chars: int = MAX_OUTPUT_CHARS


class BoundedOutput:
    """Keeps the newest characters of a stream and counts the rest."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[str] = deque()
        self._kept = 0
        self._dropped = 0
        self.version = 0

    def write(self, text: str) -> None:
        """Add text at the end."""
        if not text:
            return
        self.version += 1
        self._pieces.append(text)
        self._kept += len(text)
        while self._kept > self._limit:
            excess = self._kept - self._limit
            first = self._pieces[0]
            if len(first) <= excess:
                self._pieces.popleft()
                cut = len(first)
            else:
                self._pieces[0] = first[excess:]
                cut = excess
            self._kept -= cut
            self._dropped += cut

    def text(self) -> str:
        """What is kept, with a note of what is not."""
        kept = "".join(self._pieces)
        if not self._dropped:
            return kept
        return f"[{self._dropped} earlier characters are not shown]\n{kept}"


class BashTool:
    """Runs a command with bash in a working directory.

    The command runs in a process group of its own, which is killed when the run is aborted, when
    the time is over, and when the tool is cancelled. It is never safe to replay.
    """

    name = "bash"
    description = (
        "Run a command with bash. Output of stdout and stderr comes back together; only the newest "
        "part of very long output is kept. `timeout` is in seconds."
    )
    parameters: ClassVar[dict[str, JsonValue]] = {
        "type": "object",
        "properties": {
            "command": {"type": "string", "minLength": 1},
            "timeout": {"type": "number", "exclusiveMinimum": 0},
        },
        "required": ["command"],
        "additionalProperties": False,
    }
    replay: ReplayPolicy = "never"

    def __init__(
        self,
        working_directory: Path,
        *,
        environment: Mapping[str, str] | None = None,
        limits: BashLimits | None = None,
        clock: Clock | None = None,
        shell: str = "bash",
    ) -> None:
        self._directory = working_directory
        self._environment = None if environment is None else dict(environment)
        self._limits = limits or BashLimits()
        self._clock = clock or SystemClock()
        self._shell = shell

    def prepare_arguments(self, arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
        return arguments

    async def execute(
        self,
        tool_call_id: str,
        arguments: dict[str, JsonValue],
        on_update: ToolUpdate,
        tool_context: object,
        invocation: ToolInvocation,
        context: Context,
    ) -> AgentToolResult:
        command = str(arguments["command"])
        seconds = self._seconds(arguments.get("timeout"))
        output = BoundedOutput(self._limits.output_chars)
        process, pipe = await self._start(command)
        reading = asyncio.ensure_future(_read(pipe, output))
        reporting = asyncio.ensure_future(self._report(output, on_update))
        try:
            ended = await self._wait(process, seconds, context)
        finally:
            # Whatever the command left behind in its group must not outlive the call.
            await _stop(process)
            reporting.cancel()
            await asyncio.wait((reading,), timeout=DRAIN_SECONDS)
            reading.cancel()
            await asyncio.gather(reading, reporting, return_exceptions=True)
            pipe.close()
        return self._result(process.returncode, ended, seconds, output)

    async def _start(self, command: str) -> tuple[asyncio.subprocess.Process, OutputPipe]:
        pipe = await OutputPipe.open()
        try:
            process = await asyncio.create_subprocess_exec(
                self._shell,
                "-c",
                command,
                cwd=self._directory,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=pipe.write_end,
                stderr=pipe.write_end,
                start_new_session=True,
            )
        except BaseException:
            pipe.close()
            raise
        finally:
            pipe.close_write_end()
        return process, pipe

    def _seconds(self, wanted: JsonValue) -> float:
        if isinstance(wanted, int | float):
            return min(float(wanted), self._limits.max_timeout)
        return self._limits.default_timeout

    async def _wait(
        self, process: asyncio.subprocess.Process, seconds: float, context: Context
    ) -> str:
        waits = {
            "exit": asyncio.ensure_future(process.wait()),
            "timeout": asyncio.ensure_future(self._clock.sleep(seconds)),
        }
        if context.abort_signal is not None:
            waits["abort"] = asyncio.ensure_future(context.abort_signal.wait())
        try:
            await asyncio.wait(waits.values(), return_when=asyncio.FIRST_COMPLETED)
            return next(name for name, wait in waits.items() if wait.done())
        finally:
            for wait in waits.values():
                wait.cancel()

    async def _report(self, output: BoundedOutput, on_update: ToolUpdate) -> None:
        seen = 0
        stored = ""
        stored_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(UPDATE_SECONDS)
            if output.version == seen:
                continue
            seen = output.version
            text = output.text()
            due = self._clock.monotonic() - stored_at >= CHECKPOINT_SECONDS and text != stored
            if due:
                stored, stored_at = text, self._clock.monotonic()
            on_update(AgentToolResult(content=(TextContent(text=text),)), checkpoint=due)

    def _result(
        self, code: int | None, ended: str, seconds: float, output: BoundedOutput
    ) -> AgentToolResult:
        text = output.text()
        if ended == "timeout":
            raise CommandFailed(_noted(text, f"stopped after {seconds:g} seconds"))
        if ended == "abort":
            raise CommandFailed(_noted(text, "stopped because the run was cancelled"))
        if code != 0:
            raise CommandFailed(_noted(text, f"exit code {code}"))
        return AgentToolResult(
            content=(TextContent(text=text or "(no output)"),), details={"exitCode": 0}
        )


def _noted(text: str, note: str) -> str:
    separator = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{separator}[{note}]"


class OutputPipe:
    """A pipe of our own: asyncio's would tie the end of the command to the end of its children."""

    def __init__(self, write_end: int) -> None:
        self.write_end = write_end
        self.reader = asyncio.StreamReader()
        self._transport: asyncio.ReadTransport | None = None
        self._writable = True

    @staticmethod
    async def open() -> OutputPipe:
        """Make the pipe and listen on its reading end."""
        read_end, write_end = os.pipe()
        pipe = OutputPipe(write_end)
        loop = asyncio.get_running_loop()
        pipe._transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(pipe.reader), os.fdopen(read_end, "rb")
        )
        return pipe

    def close_write_end(self) -> None:
        """Leave the writing end to the command alone."""
        if self._writable:
            self._writable = False
            os.close(self.write_end)

    def close(self) -> None:
        """Give both ends back."""
        self.close_write_end()
        if self._transport is not None:
            self._transport.close()


async def _read(pipe: OutputPipe, output: BoundedOutput) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while chunk := await pipe.reader.read(65_536):
        output.write(decoder.decode(chunk))
    output.write(decoder.decode(b"", final=True))


async def _stop(process: asyncio.subprocess.Process) -> None:
    """End the whole group: ask first, then insist."""
    group = process.pid
    if process.returncode is None:
        _signal(group, signal.SIGTERM)
        waiting = asyncio.ensure_future(process.wait())
        await asyncio.wait((waiting,), timeout=KILL_GRACE_SECONDS)
        waiting.cancel()
    _signal(group, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
