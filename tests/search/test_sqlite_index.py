"""The SQLite index file itself: shared by processes, damaged, foreign, compacted, interrupted."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND, AbortController, Context
from harness.environment import Environment
from harness.search.service import SearchAborted, SearchError, SearchQuery
from harness.search.source import RepositorySource
from harness.search.sqlite import SqliteSearch
from harness.search.sync import SourcePage, sync_all
from harness.session.repo import CreateOptions
from harness.session.repo_files import JsonlSessions
from tests.search.support import found, say, sessions_for

ROOT = Path(__file__).parents[2]


def repository(folder: Path) -> JsonlSessions:
    return JsonlSessions(folder / "s", Environment.system())


async def fill(folder: Path, sessions: int, entries: int) -> set[str]:
    """Closed sessions that all speak of auth."""
    made: set[str] = set()
    repo = repository(folder)
    for _ in range(sessions):
        session = await repo.create(CreateOptions(), BACKGROUND)
        made.update(await say(session, *(f"auth {n}" for n in range(entries))))
        await session.close(BACKGROUND)
    return made


def indexer(folder: Path, times: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.search.sync_forever", str(folder), str(times)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


async def test_processes_share_an_index_and_may_be_killed(tmp_path: Path) -> None:
    entries = await fill(tmp_path, 20, 30)
    processes = [indexer(tmp_path, times) for times in (3, 3, 1_000_000)]
    for process in processes:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
    processes[2].kill()
    codes = [await asyncio.to_thread(process.wait) for process in processes]
    assert codes[:2] == [0, 0]
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
    index = await SqliteSearch.open(tmp_path / "search.db")
    report = await sync_all(
        RepositorySource(repository(tmp_path), SystemClock()), index, BACKGROUND
    )
    assert report.failures == {}
    assert await found(index, "auth") == entries
    assert [hit.matches for hit in await sessions_for(index, "auth", 100)] == [30] * 20
    await index.close()


async def test_unchanged_sessions_are_not_read_again(tmp_path: Path) -> None:
    await fill(tmp_path, 3, 2)
    for file in (tmp_path / "s").glob("*.jsonl"):
        os.utime(file, (1_000, 1_000))  # long ago
    reads: list[str] = []

    class Counting(RepositorySource):
        async def read(self, session_id: str, after_seq: int, context: Context) -> SourcePage:
            reads.append(session_id)
            return await super().read(session_id, after_seq, context)

    repo = repository(tmp_path)
    source = Counting(repo, SystemClock())
    index = await SqliteSearch.open(tmp_path / "search.db")
    await sync_all(source, index, BACKGROUND)
    assert len(reads) == 3
    await sync_all(source, index, BACKGROUND)
    assert len(reads) == 3
    changed = (await repo.list(BACKGROUND))[1]
    session = await repo.open(changed, BACKGROUND)
    await say(session, "auth again")
    await session.close(BACKGROUND)
    await sync_all(source, index, BACKGROUND)
    assert reads[3:] == [changed.id]
    # A file that was written to just now may change without its time changing: read it again.
    await sync_all(source, index, BACKGROUND)
    assert reads[4:] == [changed.id]
    await index.close()


async def test_a_file_that_is_no_index_is_refused(tmp_path: Path) -> None:
    damaged, foreign, newer = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "c.db"
    damaged.write_bytes(b"no database at all" * 100)
    with pytest.raises(SearchError, match="damaged"):
        await SqliteSearch.open(damaged)
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE mine (x)")
    connection.close()
    with pytest.raises(SearchError, match="no search index"):
        await SqliteSearch.open(foreign)
    index = await SqliteSearch.open(newer)
    await index.close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(SearchError, match="layout 99"):
        await SqliteSearch.open(newer)
    with sqlite3.connect(foreign) as connection:
        assert connection.execute("SELECT count(*) FROM mine").fetchone() == (0,)
    connection.close()


async def test_a_lost_index_is_rebuilt(tmp_path: Path) -> None:
    entries = await fill(tmp_path, 2, 3)
    path = tmp_path / "search.db"
    source = RepositorySource(repository(tmp_path), SystemClock())
    for _ in range(2):
        index = await SqliteSearch.open(path)
        await sync_all(source, index, BACKGROUND)
        assert await found(index, "auth") == entries
        await index.close()
        for file in tmp_path.glob("search.db*"):
            file.unlink()


async def test_compacting_leaves_no_trace_of_what_was_removed(tmp_path: Path) -> None:
    repo = repository(tmp_path)
    session = await repo.create(CreateOptions(), BACKGROUND)
    await say(session, "the passphrase is xylophonic", "something harmless")
    source = RepositorySource(repo, SystemClock())
    path = tmp_path / "search.db"
    index = await SqliteSearch.open(path)
    await sync_all(source, index, BACKGROUND)
    await fill(tmp_path, 1, 3)
    await session.close(BACKGROUND)
    await repo.delete(session.metadata, BACKGROUND)
    report = await sync_all(source, index, BACKGROUND)
    assert report.removed == 1
    await index.compact(BACKGROUND)
    assert len(await sessions_for(index, "auth")) == 1
    await index.close()
    for file in tmp_path.glob("search.db*"):
        assert b"xylophonic" not in file.read_bytes()


async def test_aborting_stops_the_search_that_runs(tmp_path: Path) -> None:
    await fill(tmp_path, 1, 200)
    index = await SqliteSearch.open(tmp_path / "search.db")
    await sync_all(RepositorySource(repository(tmp_path), SystemClock()), index, BACKGROUND)
    running, aborted = threading.Event(), threading.Event()

    def pause() -> int:
        running.set()
        aborted.wait()
        return 0

    index._reading.set_progress_handler(pause, 50)
    controller = AbortController()
    search = asyncio.create_task(
        index.search_sessions(SearchQuery("auth"), Context(abort_signal=controller.signal))
    )
    waiting = asyncio.create_task(index.search_sessions(SearchQuery("auth"), BACKGROUND))
    await asyncio.to_thread(running.wait)
    controller.abort()
    aborted.set()
    with pytest.raises(SearchAborted):
        await search
    # The one behind it is not the one that was aborted.
    assert len(await waiting) == 1
    await index.close()


async def test_a_closed_index_says_so(tmp_path: Path) -> None:
    index = await SqliteSearch.open(tmp_path / "search.db")
    await index.close()
    await index.close()
    with pytest.raises(SearchError, match="closed"):
        await sessions_for(index, "auth")
