"""SIGKILL while a process commits as fast as it can: every reported commit is there (§1.7)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.storage.address import list_of
from harness.storage.jsonl_file import create_jsonl
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import ListRead, UsageScan
from harness.storage.sqlite_create import create_sqlite
from tests.storage.hold_session import open_session
from tests.storage.support import ROOT, kill

LOG = list_of(Any, "app.log")


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
async def test_a_killed_writer(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"s.{kind}"
    create = create_sqlite if kind == "sqlite" else create_jsonl
    create(path, SessionMetadata(id="s", created_at=1))
    reported = -1
    for stop_after in (1, 7, 40):
        writer = subprocess.Popen(  # noqa: ASYNC220  # nothing else runs on this loop
            [sys.executable, "-m", "tests.storage.write_forever", kind, str(path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(stop_after):
            reported = int(writer.stdout.readline())
        kill(writer)
        storage = await open_session(kind, path, SystemClock())
        elements = await storage.read_list(LOG, ListRead(limit=10_000), BACKGROUND)
        rows = await storage.scan_usage(UsageScan(), BACKGROUND)
        numbers = [element.value for element in elements]
        assert numbers == [number for number in range(len(rows)) for _ in range(2)]
        assert len(rows) > reported
        await storage.close(BACKGROUND)
