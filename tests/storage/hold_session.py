"""A process of its own that opens a session, writes one value, says so, and stays until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from harness.clock import Clock, SystemClock
from harness.context import BACKGROUND
from harness.storage.address import value
from harness.storage.jsonl import JsonlStorage
from harness.storage.protocol import Storage
from harness.storage.sqlite import SqliteStorage
from harness.storage.writes import set_value


async def open_session(kind: str, path: Path, clock: Clock) -> Storage:
    """Open a session file of this kind."""
    match kind:
        case "sqlite":
            return await SqliteStorage.open(path, clock)
        case "jsonl":
            return await JsonlStorage.open(path, clock)
        case _:
            raise SystemExit(f"unknown backend {kind}")


async def hold(kind: str, path: Path) -> None:
    """Open, write, and wait."""
    storage = await open_session(kind, path, SystemClock())
    await storage.commit([set_value(value(Any, "app.note"), "from the holder")], BACKGROUND)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], Path(sys.argv[2])))
