"""A process killed anywhere in a SQLite commit leaves the whole transaction or nothing of it (§1.4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.address import list_of, value
from harness.storage.protocol import EntryScan, UsageScan
from harness.storage.sqlite import SqliteStorage
from harness.storage.writes import insert_entry
from harness.testing.conformance.samples import Samples
from tests.storage.support import new_sqlite, run_module


@pytest.fixture(scope="module")
def statements(tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many statements the commit under test runs."""
    import asyncio

    path = tmp_path_factory.mktemp("count") / "s.sqlite"

    async def make() -> None:
        await (await new_sqlite(path)).close(BACKGROUND)

    asyncio.run(make())
    output = run_module("tests.storage.die_in_sqlite", str(path), "0").stdout
    return int(output.removeprefix("survived "))


async def test_death_at_every_statement(tmp_path: Path, statements: int) -> None:
    assert statements > 15
    for at in range(1, statements + 2):
        path = tmp_path / f"{at}.sqlite"
        await (await new_sqlite(path)).close(BACKGROUND)
        finished = run_module("tests.storage.die_in_sqlite", str(path), str(at))
        assert finished.returncode == -9
        committed = "survived" in finished.stdout
        assert committed == (at == statements + 1)
        storage = await SqliteStorage.open(path, SystemClock())
        found = await storage.get_value(value(Any, "app.v"), BACKGROUND)
        assert found is not None
        entries = await storage.scan_entries(EntryScan(), BACKGROUND)
        rows = await storage.scan_usage(UsageScan(), BACKGROUND)
        elements = await storage.read_list(list_of(Any, "app.l"), None, BACKGROUND)
        stats = await storage.get_stats(BACKGROUND)
        whole = ("war", 3, 1, 1, 2) if committed else ("peace", 1, 0, 0, 1)
        assert (found.value, len(entries), len(rows), len(elements), stats.message_count) == whole
        # The session goes on.
        leaf = Samples(at).entry(entries[-1].id)
        await storage.commit([insert_entry(leaf)], BACKGROUND)
        await storage.close(BACKGROUND)
