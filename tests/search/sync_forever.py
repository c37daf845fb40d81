"""A process that brings an index up to date with a folder again and again, until it is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.environment import Environment
from harness.search.source import RepositorySource
from harness.search.sqlite import SqliteSearch
from harness.search.sync import sync_all
from harness.session.repo_files import JsonlSessions


async def main(folder: Path, times: int) -> None:
    index = await SqliteSearch.open(folder / "search.db")
    source = RepositorySource(JsonlSessions(folder / "s", Environment.system()), SystemClock())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for _ in range(times):
        report = await sync_all(source, index, BACKGROUND)
        assert report.failures == {}, report
    await index.close()


asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
