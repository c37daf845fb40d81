"""A process of its own that kills itself at one statement of a commit."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.address import list_of, value
from harness.storage.sqlite import SqliteStorage
from harness.storage.writes import append_list, insert_entry, insert_usage, set_value
from harness.testing.conformance.samples import Samples


async def die(path: Path, at_statement: int) -> None:
    """Commit once in peace, then once with death at the given statement; say so if it never came."""
    storage, samples, seen = await SqliteStorage.open(path, SystemClock()), Samples(), 0
    first = samples.entry(None)
    await storage.commit([insert_entry(first), set_value(value(Any, "app.v"), "peace")], BACKGROUND)

    def trace(statement: str) -> None:
        nonlocal seen
        seen += 1
        if seen == at_statement:
            os.kill(os.getpid(), signal.SIGKILL)

    storage._file._db.set_trace_callback(trace)
    await storage.commit(
        [
            insert_entry(samples.entry(first.id)),
            # From the middle of the tree: the branch index copies rows in this transaction.
            insert_entry(samples.entry(first.id, samples.compaction())),
            insert_usage(samples.row()),
            set_value(value(Any, "app.v"), "war"),
            append_list(list_of(Any, "app.l"), 1),
        ],
        BACKGROUND,
    )
    sys.stdout.write(f"survived {seen}\n")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(die(Path(sys.argv[1]), int(sys.argv[2])))
