"""A process of its own whose files may not grow past a limit in the middle of one line."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from pathlib import Path
from typing import Any

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.errors import StorageError
from harness.storage.address import list_of
from harness.storage.jsonl import JsonlStorage
from harness.storage.writes import append_list

LOG = list_of(Any, "app.log")


async def fill(path: Path) -> None:
    """Fail to write a long line, then write a short one."""
    storage = await JsonlStorage.open(path, SystemClock())
    await storage.commit([append_list(LOG, "before")], BACKGROUND)
    size = path.stat().st_size
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 1_000, hard))
    try:
        await storage.commit([append_list(LOG, "x" * 1_000_000)], BACKGROUND)
    except StorageError:
        assert path.stat().st_size == size
        sys.stdout.write("refused, then ")
    assert len(await storage.read_list(LOG, None, BACKGROUND)) == 1
    await storage.commit([append_list(LOG, "after")], BACKGROUND)
    sys.stdout.write("written\n")
    await storage.close(BACKGROUND)


if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1])))
