"""Child processes of `laneway dev`: started, heard until they are ready, started again when they die."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Mapping, Sequence

_START_SECONDS = 60.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
# Who lived this long is not in a loop of deaths.
_SETTLED_SECONDS = 10.0


class ChildFailed(Exception):
    """A child process did not get ready; its own output says why."""


class Child:
    """One kept child: it prints a JSON line on standard output when it is ready.

    `tell` hears of its deaths and returns. Its other output goes to standard error.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        tell: Callable[[str], None],
    ) -> None:
        self.name = name
        self._command = list(command)
        self._environment = dict(environment)
        self._tell = tell
        self._process: Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """Its process id now; None between a death and the next start."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    def change(self, environment: Mapping[str, str]) -> None:
        """More environment for later starts."""
        self._environment.update(environment)

    async def start(self) -> dict[str, object]:
        """Start it and keep it; returns what it said when it was ready. Raises `ChildFailed`."""
        said = await self._launch()
        self._keeping = asyncio.create_task(self._keep())
        return said

    def terminate(self) -> None:
        """Ask it to drain and end; it is not started again."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self._signal(signal.SIGKILL)

    async def ended(self) -> None:
        """Return when it is gone after `terminate` or `kill`."""
        if self._keeping is not None:
            await self._keeping

    def _signal(self, number: signal.Signals) -> None:
        self._stopping = True
        if self.pid is not None and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _launch(self) -> dict[str, object]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "app.cli.main",
            *self._command,
            "--json",
            "--until-stdin-ends",
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment,
            # A Ctrl-C in the terminal is for the parent, which drains its children.
            start_new_session=True,
        )
        self._process = process
        assert process.stdout is not None
        try:
            async with asyncio.timeout(_START_SECONDS):
                line = await process.stdout.readline()
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        if not line:
            code = await process.wait()
            raise ChildFailed(f"the {self.name} did not start (exit code {code})")
        return dict(json.loads(line))

    async def _keep(self) -> None:
        pause = _FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while True:
            process = self._process
            assert process is not None
            born = loop.time()
            code = await process.wait()
            if self._stopping:
                return
            if loop.time() - born > _SETTLED_SECONDS:
                pause = _FIRST_PAUSE
            self._tell(f"{self.name} {process.pid} died ({_cause(code)}); starting another")
            while not self._stopping:
                await asyncio.sleep(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
                try:
                    await self._launch()
                except (ChildFailed, TimeoutError) as error:
                    self._tell(str(error) or f"the {self.name} was not ready in time")
                    continue
                self._tell(f"{self.name} is now process {self.pid}")
                break
            if self._stopping:
                self._signal(signal.SIGTERM)
                if self._process is not None:
                    await self._process.wait()
                return


def _cause(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    return f"signal {signal.Signals(-code).name}"
