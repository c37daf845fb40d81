"""Ten thousand entries exported, imported and forked over HTTP."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import msgspec
import pytest

from harness.entries import MessageEntry
from harness.environment import Environment
from harness.messages import UserMessage
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.export_file import Summary, export_header, write_lines
from harness.session.fork import value_record
from harness.storage.metadata import SessionMetadata
from harness.storage.records import Record
from tests.app.copying import JSONL
from tests.app.kit import Tenant
from tests.app.test_operations import new_id

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONG, TEXT = 10_000, "x" * 1_200


def write_long(path: Path) -> Summary:
    """An export of ten thousand entries; returns what it says of itself."""
    ids = Environment.system().ids

    def records() -> Iterator[Record]:
        parent: str | None = None
        for seq in range(1, LONG + 1):
            entry = MessageEntry(
                id=ids.next(),
                parent_id=parent,
                seq=seq,
                timestamp=seq,
                message=UserMessage(content=f"{seq} {TEXT}", timestamp=seq),
            )
            parent = entry.id
            yield entry
        yield value_record(values.lane_leaf("main"), parent, LONG + 1)
        yield value_record(values.lane_state("main"), IDLE_LANE, LONG + 2)

    body = path.with_suffix(".body")
    with body.open("wb") as file:
        summary = write_lines(file, records())
    made = SessionMetadata(id=new_id(), created_at=1)
    path.write_bytes(export_header(made, LONG + 3, summary) + body.read_bytes())
    return summary


async def test_ten_thousand_entries_pass_through_little_memory(tenant: Tenant, tmp_path: Path):
    path = tmp_path / "long.jsonl"
    summary = await asyncio.to_thread(write_long, path)
    size, digest = path.stat().st_size, hashlib.sha256()
    assert size > LONG * len(TEXT)

    async def pieces() -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(1 << 16):
                yield piece

    def peak() -> int:
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        return highest

    headers = {"Authorization": f"Bearer {tenant.key}"}
    api = tenant.world.apis[0]
    async with httpx.AsyncClient(base_url=api.url, headers=headers, timeout=60) as client:
        tracemalloc.start()
        made = await client.post("/v1/sessions/import", content=pieces(), headers=JSONL)
        peaks = [peak()]
        session = made.json()["session"]["id"]
        async with client.stream("GET", f"/v1/sessions/{session}/export") as sent:
            chunks = sent.aiter_bytes(1 << 16)
            head, _, first = (await anext(chunks)).partition(b"\n")
            digest.update(first)
            async for chunk in chunks:
                digest.update(chunk)
        peaks.append(peak())
        copy = await client.post(f"/v1/sessions/{session}/fork", json={"scope": "tree"})
        peaks.append(peak())
        tracemalloc.stop()
    assert made.json()["summary"] == msgspec.to_builtins(summary)
    assert json.loads(head)["export"] == msgspec.to_builtins(summary)
    assert digest.hexdigest() == summary.sha256
    assert (made.json()["session"]["messageCount"], copy.json()["messageCount"]) == (LONG, LONG)
    assert max(peaks) < size / 2, (size, peaks)
