"""Starts the fleet's processes as forks of one that has imported everything.

Each is a process of its own that runs the command line, and dies like any other; it only skips the second
and more of processor time that the imports take, so that a test can afford hundreds of deaths.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, TypeAlias

# What a worker or an API process has imported after its first request to a model.
_IMPORTS = (
    "app.cli.main",
    "app.http.serve",
    "workers.worker",
    "storage_pg.migrate",
    "harness.models.pydantic_ai",
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.openai",
    "pydantic_ai.direct",
    "tests.fleet.nursery",
)

# Any: one end of a pipe, whose class differs from system to system.
Connection: TypeAlias = Any

_CONTEXT = multiprocessing.get_context("forkserver")


class Born:
    """A process of the nursery's, as asyncio's own would be spoken to."""

    def __init__(self, process: ForkServerProcess, said: Connection, life: Connection) -> None:
        self._process = process
        self._life = life
        assert process.pid is not None
        self.pid: int = process.pid
        self.returncode: int | None = None
        self._gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(process.sentinel, self._ended)
        self.stdout = _Lines(said)

    def send_signal(self, number: int) -> None:
        """Send a signal; raises `ProcessLookupError` when it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Its exit status once it has ended; a signal's number, negative, when that ended it."""
        await self._gone.wait()
        assert self.returncode is not None
        return self.returncode

    def _ended(self) -> None:
        self._loop.remove_reader(self._process.sentinel)
        self._process.join()
        self.returncode = self._process.exitcode
        self._process.close()
        self._life.close()
        self._gone.set()


class _Lines:
    """What a process says on its standard output."""

    def __init__(self, source: Connection) -> None:
        self._source = source
        self._text = b""

    async def readline(self) -> bytes:
        """The next line, or what there was when it ended."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._text:
            ready = loop.create_future()
            descriptor = self._source.fileno()
            loop.add_reader(descriptor, _once, ready)
            try:
                await ready
            finally:
                loop.remove_reader(descriptor)
            piece = os.read(descriptor, 65_536)
            if not piece:
                break
            self._text += piece
        line, newline, self._text = self._text.partition(b"\n")
        return line + newline


def _once(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)


async def start(arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Born:
    """Start `laneway` with these arguments; what it writes to standard error is added to `log`.

    It is told to stop when this process ends, however that ends.
    """
    _CONTEXT.set_forkserver_preload(list(_IMPORTS))
    says, said = _CONTEXT.Pipe(duplex=False)
    lives, life = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(
        target=_run,
        args=([*arguments, "--until-stdin-ends"], dict(environment), str(log), lives, said),
        daemon=True,
    )
    try:
        await asyncio.to_thread(process.start)
    finally:
        said.close()
        lives.close()
    return Born(process, says, life)


def _run(
    arguments: list[str],
    environment: dict[str, str],
    log: str,
    lives: Connection,
    said: Connection,
) -> None:
    """The new process: what it inherited is replaced by what it was started with."""
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number, descriptor in enumerate((lives.fileno(), said.fileno(), written)):
        os.dup2(descriptor, number)
    for opened in (lives, said):
        opened.close()
    os.close(written)
    with contextlib.suppress(OSError, ValueError):
        sys.stdin.close()
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, closefd=False) for number, mode in enumerate(("r", "w", "w"))
    )
    os.environ.clear()
    os.environ.update(environment)
    from app.cli.main import cli

    cli(arguments, prog_name="laneway")
