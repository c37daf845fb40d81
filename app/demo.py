"""`make demo`: a prompt, a real language model, a tool, a worker killed in the middle of it, the recovery.

Everything is real: Postgres, the API, two workers and a model server, each a process of its own, in a
folder that is thrown away. The end is 0 only when all that is claimed on the screen was checked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psycopg
from rich.console import Console
from rich.markup import escape

from app.cli.children import ChildFailed
from app.cli.dev import DevOptions, DevStack, dev_stack
from app.client import StreamEvent, read_events
from app.local_model import LocalModelFailed, LocalModelMissing

STORY = "Tell me a short story about a lighthouse."
REPORT = 'Use the slow_report tool with topic "harbour lights" and seconds 6.'
COUNT = 'Use the count_words tool with text "a worker died, another took over".'

_OVERALL_SECONDS = 240.0
_STEP_SECONDS = 60.0
_OWNER = """
SELECT h.id::text, h.process_id FROM laneway.sessions s JOIN laneway.hosts h ON h.id = s.owner_host
WHERE s.id = %s
"""

console = Console(highlight=False, soft_wrap=True)


class DemoFailed(Exception):
    """Something that the demonstration promises did not happen."""


@dataclass(slots=True)
class Checks:
    """What was looked at, and whether it was so."""

    failed: list[str] = field(default_factory=list[str])

    def that(self, claim: str, holds: bool) -> None:
        """Note whether a claim holds."""
        console.print(f"  {'[green]✓[/green]' if holds else '[red]✗[/red]'} {escape(claim)}")
        if not holds:
            self.failed.append(claim)


class Watcher:
    """Shows a lane's events as they come, and lets the demonstration wait for one."""

    def __init__(self, client: httpx.AsyncClient, path: str) -> None:
        self._client = client
        self._path = path
        self._started = time.monotonic()
        self._changed = asyncio.Condition()
        self.events: list[StreamEvent] = []
        self.text_deltas = 0
        self._midline = False

    async def run(self) -> None:
        """Watch until cancelled, connecting again whenever a stream ends."""
        while True:
            try:
                async for event in read_events(self._client, self._path):
                    self._show(event)
                    async with self._changed:
                        self.events.append(event)
                        self._changed.notify_all()
            except httpx.HTTPError as error:
                self.say(f"the stream broke ({type(error).__name__}); connecting again")
                await asyncio.sleep(0.2)

    async def wait_for(
        self, what: str, matches: Callable[[StreamEvent], bool], after: int = 0
    ) -> int:
        """The index of the first event from `after` on that matches."""
        seen = after
        try:
            async with asyncio.timeout(_STEP_SECONDS), self._changed:
                while True:
                    for index in range(seen, len(self.events)):
                        if matches(self.events[index]):
                            return index
                    seen = len(self.events)
                    await self._changed.wait()
        except TimeoutError:
            raise DemoFailed(f"waited {_STEP_SECONDS:.0f} s for {what}") from None

    def say(self, text: str, style: str = "dim") -> None:
        """A line with the time since the watch began."""
        self._end_line()
        elapsed = time.monotonic() - self._started
        console.print(f"[dim]{elapsed:7.2f}s[/dim]  [{style}]{escape(text)}[/{style}]")

    def _end_line(self) -> None:
        if self._midline:
            console.print()
            self._midline = False

    def _show(self, event: StreamEvent) -> None:
        data = event.data
        match event.name:
            case "message_update":
                self._show_delta(data["event"])
            case "snapshot":
                self.say(_snapshot(data))
            case "run_start" | "run_end" | "turn_start":
                shown = " ".join(str(data[key]) for key in ("runId", "outcome") if key in data)
                again = " (recovery)" if data.get("recovery") else ""
                self.say(f"{event.name} {shown}{again}")
            case "tool_start":
                again = " again, in another process" if data.get("recovery") else ""
                self.say(f"tool {data['toolName']} starts{again}: {data['args']}", "cyan")
            case "tool_update":
                self.say(f"tool reports: {_text(data['partialResult'])}", "cyan")
            case "entry_added":
                self._show_entry(data["entry"])
            case "end":
                self.say(f"end of stream: {data['reason']}")
            case _:
                pass

    def _show_delta(self, delta: dict[str, Any]) -> None:
        if delta["type"] not in ("text_delta", "toolcall_delta"):
            return
        if delta["type"] == "text_delta":
            self.text_deltas += 1
        if not self._midline:
            console.print(" " * 10, end="")
            self._midline = True
        console.print(f"[yellow]{escape(delta['delta'])}[/yellow]", end="")

    def _show_entry(self, entry: dict[str, Any]) -> None:
        message = entry.get("message", {})
        if message.get("role") == "toolResult":
            self.say(f"tool result: {_text(message)}", "red" if message["isError"] else "cyan")


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    # Any: JSON; content is one text or a list of parts.
    content: Any = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(message: dict[str, Any]) -> str:
    return "\n".join(part["text"] for part in _parts(message) if part["type"] == "text")


def _snapshot(data: dict[str, Any]) -> str:
    operation: dict[str, Any] = data["operation"] or {}
    running: list[dict[str, Any]] = operation.get("runningTools", [])
    tools = "".join(f", tool {tool['toolName']} is running" for tool in running)
    return f"snapshot: {len(data['transcript'])} entries{tools}"


def _named(name: str) -> Callable[[StreamEvent], bool]:
    return lambda event: event.name == name


@dataclass(slots=True)
class Demo:
    """One demonstration on a running stack."""

    stack: DevStack
    client: httpx.AsyncClient
    trace: Path
    checks: Checks
    session_id: str = ""
    lane: str = ""

    async def run(self) -> None:
        """All three acts and the transcript."""
        made = await self.client.post("/v1/sessions", json={"name": "demo"})
        made.raise_for_status()
        self.session_id = made.json()["id"]
        self.lane = f"/v1/sessions/{self.session_id}/lanes/main"
        async with self._watching() as watcher:
            await self._story(watcher)
            await self._report(watcher)
            await self._count(watcher)
        await self._transcript()

    @asynccontextmanager
    async def _watching(self) -> AsyncGenerator[Watcher]:
        watcher = Watcher(self.client, f"{self.lane}/events")
        task = asyncio.create_task(watcher.run())
        try:
            await watcher.wait_for("the snapshot", _named("snapshot"))
            yield watcher
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _submit(self, watcher: Watcher, prompt: str) -> str:
        watcher.say(f"prompt: {prompt}", "bold")
        answer = await self.client.post(
            f"{self.lane}/operations", json={"kind": "prompt", "prompt": prompt}
        )
        if answer.status_code != 202:
            raise DemoFailed(f"the prompt was answered {answer.status_code}: {answer.text}")
        return answer.json()["operationId"]

    async def _receipt(self, operation_id: str) -> dict[str, Any]:
        answer = await self.client.get(
            f"/v1/operations/{operation_id}?wait=30", timeout=_STEP_SECONDS
        )
        answer.raise_for_status()
        return answer.json()

    async def _story(self, watcher: Watcher) -> None:
        _heading("1. A prompt over REST, answered by a language model, streamed")
        receipt = await self._receipt(await self._submit(watcher, STORY))
        watcher.say(f"receipt: {receipt['outcome']}")
        self.checks.that("the run completed", receipt["outcome"] == "completed")
        self.checks.that(
            f"the model's text came in pieces ({watcher.text_deltas})", watcher.text_deltas >= 20
        )

    async def _report(self, watcher: Watcher) -> None:
        _heading("2. A tool that must not run twice, and its worker killed in the middle of it")
        begin = len(watcher.events)
        operation_id = await self._submit(watcher, REPORT)
        await watcher.wait_for("the tool's second report", _second_report(), begin)
        dead, survivor, index = await self._kill_owner(watcher, begin)
        receipt = await self._receipt(operation_id)
        watcher.say(f"receipt: {receipt['outcome']}")
        results = [_message(event) for event in watcher.events[index:] if _is_tool_result(event)]
        said = _text(results[0]) if results else ""
        runs = self._traced("begin slow_report")
        self.checks.that("another process took over", survivor not in (dead, None))
        self.checks.that("the run completed all the same", receipt["outcome"] == "completed")
        self.checks.that(f"the tool began once, not twice ({len(runs)})", len(runs) == 1)
        self.checks.that("it never ended", not self._traced("end slow_report"))
        honest = len(results) == 1 and results[0]["isError"] and "interrupted" in said.lower()
        self.checks.that("the transcript says that its outcome is unknown", honest)
        answer = receipt.get("finalMessage")
        self.checks.that("the model answered to that", bool(answer and _text(answer).strip()))

    async def _count(self, watcher: Watcher) -> None:
        _heading("3. A tool that may be repeated, and the worker killed again")
        begin = len(watcher.events)
        operation_id = await self._submit(watcher, COUNT)
        await watcher.wait_for("the tool's start", _named("tool_start"), begin)
        dead, survivor, index = await self._kill_owner(watcher, begin)
        receipt = await self._receipt(operation_id)
        watcher.say(f"receipt: {receipt['outcome']}")
        results = [_message(event) for event in watcher.events[index:] if _is_tool_result(event)]
        runs = self._traced("begin count_words")
        self.checks.that("another process took over", survivor not in (dead, None))
        self.checks.that("the run completed", receipt["outcome"] == "completed")
        self.checks.that(
            "the tool ran again, in another process", len(runs) == 2 and runs[0] != runs[1]
        )
        counted = len(results) == 1 and _text(results[0]) == "6 words"
        self.checks.that("there is one result, and it is right", counted)

    async def _kill_owner(self, watcher: Watcher, begin: int) -> tuple[str, str | None, int]:
        dead, pid = await self._owner()
        if pid not in [worker.pid for worker in self.stack.workers]:
            raise DemoFailed(f"the session's owner {pid} is no worker of this demonstration")
        index = len(watcher.events)
        watcher.say(f"kill -9 {pid}, which is host {dead}", "bold red")
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        survivor = dead
        while survivor == dead:
            if time.monotonic() - killed > _STEP_SECONDS:
                raise DemoFailed("nobody took the session over")
            await asyncio.sleep(0.02)
            found = await self._find_owner()
            survivor = dead if found is None else found[0]
        milliseconds = (time.monotonic() - killed) * 1000
        watcher.say(f"host {survivor} took over after {milliseconds:.0f} ms", "bold green")
        return dead, survivor, index

    async def _owner(self) -> tuple[str, int]:
        found = await self._find_owner()
        if found is None:
            raise DemoFailed("nobody owns the session while its tool runs")
        return found

    async def _find_owner(self) -> tuple[str, int] | None:
        async with await psycopg.AsyncConnection.connect(self.stack.database_url) as connection:
            await connection.execute(
                "SELECT set_config('laneway.tenant', %s, true)", (self.stack.tenant_id,)
            )
            return await (await connection.execute(_OWNER, (self.session_id,))).fetchone()

    def _traced(self, what: str) -> list[str]:
        lines = self.trace.read_text().splitlines() if self.trace.exists() else []
        return [line.rpartition(" ")[2] for line in lines if line.rpartition(" ")[0] == what]

    async def _transcript(self) -> None:
        _heading("The transcript, as it is kept")
        page = (await self.client.get(f"/v1/sessions/{self.session_id}/entries?limit=1000")).json()
        stats = (await self.client.get(f"/v1/sessions/{self.session_id}/stats")).json()
        calls: list[str] = []
        results: list[str] = []
        for entry in page["data"]:
            message = entry["message"]
            calls += [part["id"] for part in _parts(message) if part["type"] == "toolCall"]
            if message["role"] == "toolResult":
                results.append(message["toolCallId"])
            _show_message(message)
        console.print()
        self.checks.that("every call has exactly one result", sorted(calls) == sorted(results))
        self.checks.that(
            "the totals count every message", stats["messageCount"] == len(page["data"])
        )


def _second_report() -> Callable[[StreamEvent], bool]:
    return lambda event: (
        event.name == "tool_update" and _text(event.data["partialResult"]).startswith("2 of")
    )


def _is_tool_result(event: StreamEvent) -> bool:
    return event.name == "entry_added" and _message(event).get("role") == "toolResult"


def _message(event: StreamEvent) -> dict[str, Any]:
    return event.data["entry"].get("message", {})


def _show_message(message: dict[str, Any]) -> None:
    role = {"user": "bold", "assistant": "yellow", "toolResult": "cyan"}.get(message["role"], "dim")
    said = _text(message)
    for part in _parts(message):
        if part["type"] == "toolCall":
            said += f"[calls {part['name']} with {part['arguments']}]"
    console.print(f"  [{role}]{message['role']:>10}[/{role}]  {escape(said.strip())}")


def _heading(text: str) -> None:
    console.print(f"\n[bold blue]{escape(text)}[/bold blue]")


async def _demonstrate() -> Checks:
    checks = Checks()
    with tempfile.TemporaryDirectory(prefix="laneway-demo-") as folder:
        trace = Path(folder) / "trace"
        options = DevOptions(
            data=Path(folder) / "data",
            port=0,
            workers=2,
            local_model=True,
            model_tokens=64,
            environment={
                "LANEWAY_LOG_LEVEL": "WARNING",
                "LANEWAY_TOOLS": "app.demo_tools:tools",
                "LANEWAY_DEMO_TRACE": str(trace),
                "LANEWAY_DRAIN_SECONDS": "5",
            },
        )
        _heading("0. Postgres, a language model, the API and two workers start")
        async with dev_stack(options, _tell) as stack:
            console.print(f"  ready at {stack.url}: {stack.pids()}")
            headers = {"Authorization": f"Bearer {stack.api_key}"}
            async with httpx.AsyncClient(base_url=stack.url, headers=headers, timeout=30) as client:
                await Demo(stack, client, trace, checks).run()
    return checks


def _tell(text: str) -> None:
    console.print(f"  [dim]{escape(text)}[/dim]")


async def _within_time() -> Checks:
    try:
        async with asyncio.timeout(_OVERALL_SECONDS):
            return await _demonstrate()
    except TimeoutError:
        raise DemoFailed(f"it took longer than {_OVERALL_SECONDS:.0f} s") from None


def main() -> int:
    """Run the demonstration; returns the exit code."""
    started = time.monotonic()
    try:
        checks = asyncio.run(_within_time())
    except KeyboardInterrupt:
        return 130
    except (
        DemoFailed,
        ChildFailed,
        LocalModelFailed,
        LocalModelMissing,
        httpx.HTTPError,
        psycopg.Error,
        OSError,
    ) as error:
        console.print(f"\n[red]The demonstration failed:[/red] {escape(str(error))}")
        return 1
    seconds = time.monotonic() - started
    if checks.failed:
        console.print(f"\n[red]{len(checks.failed)} claims did not hold[/red] ({seconds:.0f} s)")
        return 1
    console.print(f"\n[green]All of it happened, and was checked[/green] ({seconds:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
