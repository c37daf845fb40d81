"""Sessions on disk for the tests of this folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from harness.clock import Clock, SystemClock
from harness.storage.metadata import SessionMetadata
from harness.storage.sqlite import SqliteStorage
from harness.storage.sqlite_create import create_sqlite

ROOT = Path(__file__).parents[2]


class SteppedClock(SystemClock):
    """A clock that shows what the test says."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


async def new_sqlite(path: Path, clock: Clock | None = None) -> SqliteStorage:
    """A new session in a new file, open."""
    create_sqlite(path, SessionMetadata(id=path.stem, created_at=1))
    return await SqliteStorage.open(path, clock or SystemClock())


def run_module(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the tests in a process of its own, to its end."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def hold_elsewhere(kind: str, path: Path) -> subprocess.Popen[str]:
    """A process of its own that has the session open and has written to it."""
    holder = subprocess.Popen(
        [sys.executable, "-m", "tests.storage.hold_session", kind, str(path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline().strip() == "held"
    return holder


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL, and wait for the end."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
