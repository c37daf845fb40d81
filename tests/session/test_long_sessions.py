"""Ten thousand entries: walks are exact on every backend, opening stays small, forks disturb nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import psycopg
import pytest

from harness.context import BACKGROUND
from harness.models.registry import ModelRegistry
from harness.models.script import At, Gate, Text, steps
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.result import Ok
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.session.fork import BranchFork, ForkOptions, TreeFork
from harness.session.session import Session
from harness.storage import sqlite_file
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import BranchScan, EntryScan
from harness.testing.content import Content
from harness.testing.invariants import branch_violations, totals_violations, violations
from harness.usage import ZERO_USAGE
from tests.postgres import Database
from tests.session.ends import EmbeddedEnd, End, PostgresEnd, embedded
from tests.session.long import SIZE, LongHistory, fill_long, write
from tests.storage_pg.kit import Kit


async def test_walks_of_ten_thousand_entries_are_flat_walks(source: End) -> None:
    session = await source.create()
    history = await fill_long(session)
    entries = history.entries
    tips = [entries[position].id for position in range(0, len(entries), 1_700)]
    assert history.leaf is not None
    for _ in range(2):
        storage = session.storage
        for tip in (history.leaf, *tips):
            flat = history.path(tip)
            found = await storage.scan_branch(BranchScan(start=tip), BACKGROUND)
            assert [entry.id for entry in found] == flat
            structure = await storage.scan_branch_structure(
                BranchScan(start=tip, order="oldestFirst"), BACKGROUND
            )
            assert [entry.id for entry in structure] == flat[::-1]
        everything = await storage.scan_entries(EntryScan(), BACKGROUND)
        assert [entry.id for entry in everything] == [entry.id for entry in entries]
        await session.close(BACKGROUND)
        session = await source.open(session.id)
    await session.close(BACKGROUND)


def held_options(gate: Gate) -> HarnessOptions:
    """A model that stops in the middle of its answer."""
    model = scripted_model(context_window=10_000_000)
    provider = ScriptedProvider(lambda request: steps(Text("begun"), At(gate), Text("ended")))
    return HarnessOptions(models=ModelRegistry([(model, provider)]), model=model)


async def content_of(end: End, session_id: str) -> Content:
    """What is durable, whoever has the session."""
    assert isinstance(end, EmbeddedEnd | PostgresEnd)
    async with end.target.snapshot(session_id, BACKGROUND) as (_, snapshot):
        return await asyncio.to_thread(Content.of_snapshot, snapshot)


async def fork(end: End, source: SessionMetadata, options: ForkOptions) -> Session:
    """A fork, open."""
    if isinstance(end, EmbeddedEnd):
        return await end.repository.fork(source, options, BACKGROUND)
    assert isinstance(end, PostgresEnd)
    made = await end.copies.fork(source.id, options, BACKGROUND)
    return await end.open(made.id)


async def test_a_fork_while_driving_disturbs_nothing(source: End) -> None:
    session = await source.create()
    history = await fill_long(session)
    before = await session.storage.get_stats(BACKGROUND)
    gate = Gate()
    harness, _ = await AgentHarness.create(session, held_options(gate), BACKGROUND)
    running = asyncio.ensure_future(harness.prompt("go on", BACKGROUND))
    await gate.reached()
    durable = await content_of(source, session.id)
    # A turn goes on while the copies are made.
    copies = [
        asyncio.ensure_future(fork(source, session.metadata, options))
        for options in (TreeFork(), BranchFork())
    ]
    await asyncio.sleep(0)
    await harness.steer("and this", BACKGROUND)
    made = [await copy for copy in copies]
    gate.open()
    outcome = await running
    assert isinstance(outcome, Ok)
    assert outcome.value.kind == "completed"
    expected = [len(durable.entries), len(durable.path(durable.leaf("main")))]
    assert expected[0] == len(history.entries) + 1
    for copy, count in zip(made, expected, strict=True):
        content = await content_of(source, copy.id)
        assert violations(content) == []
        assert content.usage == {}
        assert (await copy.storage.get_stats(BACKGROUND)).usage == ZERO_USAGE
        assert content.current("main") is None
        assert not content.keys("pi.pending.entry")
        # Between the snapshot above and the fork's own the steer at most was queued, not placed.
        assert len(content.entries) == count
        leaf = content.leaf("main")
        assert leaf is not None
        assert await branch_violations(copy.storage, content, [leaf]) == []
        await copy.close(BACKGROUND)
    after = await content_of(source, session.id)
    assert violations(after) == []
    assert await totals_violations(session.storage, after) == []
    for row_id, row in durable.usage.items():
        assert after.usage[row_id] == row
    # Two responses (the second answers the steer) were charged, and nothing else.
    assert len(after.usage) == len(durable.usage) + 2
    assert (await session.storage.get_stats(BACKGROUND)).usage == before.usage
    await harness.close(BACKGROUND)


async def _open_and_read(end: End, session_id: str) -> None:
    """What a process does before its first turn: open, attach, show, build the context."""
    session = await end.open(session_id)
    harness, _ = await AgentHarness.create(session, held_options(Gate()), BACKGROUND)
    watch = await harness.watch(BACKGROUND)
    assert 5 <= len(watch.snapshot.transcript) <= 8
    watch.unsubscribe()
    await harness.close(BACKGROUND)


async def test_opening_sqlite_takes_the_same_work_at_any_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Instructions of SQLite's machine are counted: a scan would make them grow with the session."""
    ticks = 0

    def tick() -> int:
        nonlocal ticks
        ticks += 1
        return 0

    def connect(path: Path) -> sqlite3.Connection:
        connection = plain(path)
        connection.set_progress_handler(tick, 10)
        return connection

    plain = sqlite_file.connect
    end = embedded("sqlite", tmp_path)
    session = await end.create()
    history = LongHistory()
    counts: list[int] = []
    for size in (100, SIZE):
        start = len(history.entries)
        history.grow(size)
        await write(session.storage, history, start)
        await session.close(BACKGROUND)
        with monkeypatch.context() as patched:
            patched.setattr(sqlite_file, "connect", connect)
            ticks = 0
            await _open_and_read(end, session.id)
            counts.append(ticks)
        session = await end.open(session.id)
    await session.close(BACKGROUND)
    assert 0 < counts[1] < 1.5 * counts[0] + 50, counts


async def test_opening_postgres_reads_the_same_rows_at_any_length(fresh_database: Database) -> None:
    kit = await Kit.open(fresh_database)
    end = PostgresEnd(kit)
    session = await end.create()
    history = LongHistory()
    counts: list[int] = []
    for size in (100, SIZE):
        start = len(history.entries)
        history.grow(size)
        await write(session.storage, history, start)
        await session.close(BACKGROUND)
        before = await _rows_read(kit)
        await _open_and_read(end, session.id)
        counts.append(await _rows_read(kit) - before)
        session = await end.open(session.id)
    await session.close(BACKGROUND)
    await kit.close()
    assert 0 < counts[1] < 1.5 * counts[0] + 50, counts


async def _rows_read(kit: Kit) -> int:
    """Rows that scans and index look-ups have taken from all tables of this database so far."""
    await kit.flush_counts()
    with psycopg.connect(kit.database.admin_dsn, autocommit=True) as admin:
        row = admin.execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint "
            "FROM pg_stat_user_tables WHERE schemaname = 'laneway'"
        ).fetchone()
    assert row is not None
    return int(row[0])
