"""A process of its own that commits numbered transactions and reports each one, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.address import list_of
from harness.storage.protocol import Storage, UsageScan
from harness.storage.writes import append_list, insert_usage
from harness.testing.conformance.samples import Samples
from tests.storage.hold_session import open_session

LOG = list_of(Any, "app.log")


async def write(storage: Storage) -> None:
    """Go on after the transactions that are there."""
    number = len(await storage.scan_usage(UsageScan(), BACKGROUND))
    samples = Samples(number)
    while True:
        writes = [append_list(LOG, number), insert_usage(samples.row()), append_list(LOG, number)]
        await storage.commit(writes, BACKGROUND)
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
        number += 1


async def main() -> None:
    """Open the session named on the command line and write to it."""
    await write(await open_session(sys.argv[1], Path(sys.argv[2]), SystemClock()))


if __name__ == "__main__":
    asyncio.run(main())
