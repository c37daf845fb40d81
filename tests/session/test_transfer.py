"""Sessions move between any two backends unchanged, or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.context import BACKGROUND
from harness.errors import (
    HarnessError,
    InvalidArgument,
    NewerVersion,
    SessionNotFound,
    StorageCorrupt,
)
from harness.models.registry import ModelRegistry
from harness.models.script import say
from harness.models.scripted import ScriptedProvider, scripted_model
from harness.result import Ok
from harness.runtime.core import HarnessOptions
from harness.runtime.harness import AgentHarness
from harness.runtime.requests import PromptRequest
from harness.session.export_file import TransferDamaged, summarize
from harness.session.repo_files import JsonlSessions
from harness.session.session import Session
from harness.session.transfer import (
    Imported,
    ImportOptions,
    TransferTooLarge,
    copy_session,
    import_session,
    open_export,
)
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import BranchScan, EntryScan, ListRead, UsageScan
from harness.storage.records import Record
from harness.storage.writes import append_list, insert_entry, set_value
from harness.testing.conformance.samples import Samples
from tests.session.ends import ENVIRONMENT, LOG, NOTE, EmbeddedEnd, End, embedded, fill

GOLDEN = Path(__file__).parents[1] / "golden"


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def exported(end: End, session_id: str) -> bytes:
    async with open_export(end.target, session_id, BACKGROUND) as export:
        data = b"".join([chunk async for chunk in export.chunks()])
        assert len(data) == export.size
        return data


async def take(end: End, data: bytes, **options: Any) -> Imported:
    return await import_session(end.target, chunks(data), ImportOptions(**options), BACKGROUND)


async def content(session: Session) -> dict[str, Any]:
    """All that the storage protocol shows of a session."""
    storage = session.storage
    entries = await storage.scan_entries(EntryScan(), BACKGROUND)
    return {
        "entries": entries,
        "branches": [
            [
                entry.id
                for entry in await storage.scan_branch(BranchScan(start=entry.id), BACKGROUND)
            ]
            for entry in entries
        ],
        "usage": await storage.scan_usage(UsageScan(), BACKGROUND),
        "stats": await storage.get_stats(BACKGROUND),
        "note": await storage.get_value(NOTE, BACKGROUND),
        "log": await storage.read_list(LOG, None, BACKGROUND),
        "lanes": await session.lane_names(BACKGROUND),
    }


async def test_every_backend_hands_a_session_to_every_other(source: End, target: End) -> None:
    session = await source.create()
    await fill(session)
    before = await content(session)
    # It is open, and may be written to, while it is copied.
    imported = await copy_session(
        source.target,
        session.id,
        target.target,
        ImportOptions(id=ENVIRONMENT.ids.next()),
        BACKGROUND,
    )
    copy = await target.open(imported.metadata.id)
    assert await content(copy) == before
    assert copy.metadata == msgspec.structs.replace(session.metadata, id=copy.id)
    async with source.target.snapshot(session.id, BACKGROUND) as (_, snapshot):
        assert await asyncio.to_thread(summarize, snapshot) == imported.summary
    # Cursors and numbers go on where they were.
    cursor = before["log"][0].seq
    page = await copy.storage.read_list(LOG, ListRead(cursor=cursor), BACKGROUND)
    assert [element.value for element in page] == [2.5]
    result = await copy.storage.commit([append_list(LOG, "more")], BACKGROUND)
    original = await session.storage.commit([append_list(LOG, "more")], BACKGROUND)
    assert result.first_seq == original.first_seq
    await copy.close(BACKGROUND)
    await session.close(BACKGROUND)


async def test_a_round_trip_changes_no_byte(source: End, target: End) -> None:
    session = await source.create()
    await fill(session)
    data = await exported(source, session.id)
    await session.close(BACKGROUND)
    new_id = ENVIRONMENT.ids.next()
    await take(target, data, id=new_id)
    again = await exported(target, new_id)
    assert again.partition(b"\n")[2] == data.partition(b"\n")[2]
    left, right = (json.loads(one.partition(b"\n")[0]) for one in (data, again))
    assert {**left, "id": new_id} == right


async def test_an_export_says_what_it_holds_and_is_a_session_file(
    origin: EmbeddedEnd, tmp_path: Path
) -> None:
    session = await origin.create()
    await fill(session)
    data = await exported(origin, session.id)
    header, _, body = data.partition(b"\n")
    assert json.loads(header)["export"] == {
        "records": body.count(b"\n"),
        "sha256": hashlib.sha256(body).hexdigest(),
    }
    (tmp_path / "any name.jsonl").write_bytes(data)
    folder = EmbeddedEnd(JsonlSessions(tmp_path, ENVIRONMENT))
    opened = await folder.open(session.id)
    assert await content(opened) == await content(session)
    # What is written to the file afterwards is part of the next transfer.
    await opened.storage.commit([append_list(LOG, "appended"), set_value(NOTE, 2)], BACKGROUND)
    await opened.close(BACKGROUND)
    written = (tmp_path / "any name.jsonl").read_bytes()
    assert written.startswith(data)
    other = embedded("memory", tmp_path)
    imported = await take(other, written)
    copy = await other.open(imported.metadata.id)
    log = await copy.storage.read_list(LOG, None, BACKGROUND)
    assert [element.value for element in log] == ["after", 2.5, "appended"]
    await copy.close(BACKGROUND)
    await session.close(BACKGROUND)


def _damages(data: bytes) -> Iterable[tuple[str, bytes]]:
    lines = data.splitlines(keepends=True)
    for count in range(len(lines)):
        yield f"only {count} lines", b"".join(lines[:count])
        yield f"line {count} is missing", b"".join(lines[:count] + lines[count + 1 :])
    for cut in range(len(data) - len(lines[-1]), len(data)):
        yield f"cut at {cut}", data[:cut]
    for place in range(0, len(data), 97):
        flipped = bytes((data[place] ^ 0x01,))
        yield f"byte {place} flipped", data[:place] + flipped + data[place + 1 :]
    yield "lines swapped", b"".join([lines[0], lines[2], lines[1], *lines[3:]])
    yield "a line twice", b"".join([*lines, lines[-1]])


async def test_a_damaged_export_makes_nothing(origin: EmbeddedEnd, tmp_path: Path) -> None:
    session = await origin.create()
    await fill(session)
    data = await exported(origin, session.id)
    await session.close(BACKGROUND)
    header_length = len(data.partition(b"\n")[0])
    target = embedded("sqlite", tmp_path)
    for what, damaged in _damages(data):
        try:
            imported = await take(target, damaged)
        except (TransferDamaged, StorageCorrupt, NewerVersion, InvalidArgument):
            assert await target.repository.list(BACKGROUND) == [], what
            continue
        # A header is not digested: a flip there may say something else that is possible.
        place = next(i for i, (a, b) in enumerate(zip(data, damaged, strict=False)) if a != b)
        assert place <= header_length, what
        await target.repository.delete(imported.metadata, BACKGROUND)


def _edited(data: bytes, edit: Callable[[list[Any]], object]) -> bytes:
    """The file as its author might have written it: without digest, with these changes."""
    lines = [json.loads(line) for line in data.splitlines()]
    del lines[0]["export"]
    edit(lines)
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _find(lines: list[Any], **wanted: Any) -> dict[str, Any]:
    return next(line for line in lines if wanted.items() <= line.items())


def _drop_values(lines: list[Any], namespace: str) -> None:
    lines[:] = [line for line in lines if line.get("namespace") != namespace]


BAD: dict[str, Callable[[list[Any]], object]] = {
    "missing parent": lambda lines: _find(lines, kind="entry", type="compaction").update(
        parentId="019aaaaa-0000-7000-8000-000000000000"
    ),
    "entry twice": lambda lines: lines.append({**_find(lines, kind="entry"), "seq": 999}),
    "seq goes back": lambda lines: lines.append({**_find(lines, kind="list"), "seq": 1}),
    "no main lane": lambda lines: _drop_values(lines, "pi.lane.leaf"),
    "no lane state": lambda lines: _drop_values(lines, "pi.lane.state"),
    "leaf nowhere": lambda lines: _find(lines, namespace="pi.lane.leaf", key="main").update(
        value="019aaaaa-0000-7000-8000-000000000000"
    ),
    "state of another shape": lambda lines: _find(lines, namespace="pi.lane.state").update(
        value={"currentOperationId": 5}
    ),
    "NUL in an address": lambda lines: _find(lines, namespace="app.note").update(key="a\x00b"),
    "newer storage": lambda lines: lines[0].update(storageVersion=99),
    "newer format": lambda lines: lines[0].update(v=5),
    "no header": lambda lines: lines.pop(0),
    "unknown record": lambda lines: lines.append({"kind": "mystery", "seq": 999}),
    "negative time": lambda lines: _find(lines, kind="entry").update(timestamp=-1),
    "an id that is a path": lambda lines: lines[0].update(id="../../etc"),
}


@pytest.mark.parametrize("name", BAD)
async def test_what_cannot_be_a_session_is_refused(
    origin: EmbeddedEnd, target: End, name: str
) -> None:
    session = await origin.create()
    await fill(session)
    good = _edited(await exported(origin, session.id), lambda lines: None)
    await session.close(BACKGROUND)
    bad = _edited(await exported(origin, session.id), BAD[name])
    with pytest.raises((StorageCorrupt, NewerVersion, InvalidArgument)):
        await take(target, bad)
    with pytest.raises(SessionNotFound):
        async with target.target.snapshot(session.id, BACKGROUND):
            pass
    assert (await take(target, good)).metadata.id == session.id


async def test_a_session_file_with_its_history_can_be_imported(target: End, tmp_path: Path) -> None:
    folder = embedded("jsonl", tmp_path / "history")
    session = await folder.create()
    await fill(session)
    before = await content(session)
    (file,) = (tmp_path / "history").glob("*.jsonl")
    data = file.read_bytes()
    assert b'"op":"delete"' in data
    await session.close(BACKGROUND)
    # Cut in the middle of its last line, as a copy of a living file may be.
    imported = await take(target, data + b'{"kind":"value","op":"se')
    copy = await target.open(imported.metadata.id)
    assert await content(copy) == before
    await copy.close(BACKGROUND)


async def test_a_legacy_session_can_be_imported(target: End) -> None:
    data = (GOLDEN / "legacy3.jsonl").read_bytes()
    imported = await take(target, data, id=ENVIRONMENT.ids.next())
    copy = await target.open(imported.metadata.id)
    found = await content(copy)
    assert found["entries"]
    assert [row.details for row in found["usage"]] == [{"source": "v3-import"}]
    assert found["stats"].usage == found["usage"][0].usage
    await copy.close(BACKGROUND)


async def test_an_id_that_is_taken_stays_what_it_is(origin: EmbeddedEnd, target: End) -> None:
    session = await target.create()
    await session.storage.commit([set_value(NOTE, "mine")], BACKGROUND)
    other = await origin.create()
    await fill(other)
    data = await exported(origin, other.id)
    await other.close(BACKGROUND)
    with pytest.raises((InvalidArgument, HarnessError)):
        await take(target, data, id=session.id)
    await session.close(BACKGROUND)
    with pytest.raises(InvalidArgument, match="exists"):
        await take(target, data, id=session.id)
    opened = await target.open(session.id)
    note = await opened.storage.get_value(NOTE, BACKGROUND)
    assert note is not None
    assert note.value == "mine"
    await opened.close(BACKGROUND)


async def test_a_file_that_is_too_large_is_not_taken(origin: EmbeddedEnd, target: End) -> None:
    session = await origin.create()
    data = await exported(origin, session.id)
    await session.close(BACKGROUND)
    with pytest.raises(TransferTooLarge):
        await take(target, data, max_bytes=len(data) - 1)
    assert (await take(target, data, max_bytes=len(data))).summary.records == 2


async def test_a_target_that_loses_something_is_found_out(
    origin: EmbeddedEnd, tmp_path: Path
) -> None:
    session = await origin.create()
    await fill(session)
    data = await exported(origin, session.id)
    await session.close(BACKGROUND)
    target = embedded("memory", tmp_path)

    class Forgetful:
        snapshot = target.target.snapshot
        delete = target.target.delete

        async def restore(
            self, metadata: SessionMetadata, records: Iterable[Record], next_seq: int, context: Any
        ) -> None:
            kept = (record for record in records if record.seq != 5)
            await target.target.restore(metadata, kept, next_seq, context)

    with pytest.raises(TransferDamaged, match="other records"):
        await import_session(Forgetful(), chunks(data), ImportOptions(), BACKGROUND)
    assert await target.repository.list(BACKGROUND) == []


async def harness_of(session: Session) -> AgentHarness:
    model = scripted_model()
    options = HarnessOptions(
        models=ModelRegistry([(model, ScriptedProvider([say("done")]))]), model=model
    )
    harness, _ = await AgentHarness.create(session, options, BACKGROUND)
    return harness


async def test_an_open_operation_goes_along_only_when_asked(source: End, target: End) -> None:
    harness = await harness_of(await source.create())
    accepted = await harness.accept(PromptRequest(prompt="go"), BACKGROUND)
    assert isinstance(accepted, Ok)
    session_id = harness.session.id
    data = await exported(source, session_id)
    await harness.close(BACKGROUND)
    new_id = ENVIRONMENT.ids.next()
    with pytest.raises(InvalidArgument, match=accepted.value.operation_id):
        await take(target, data, id=new_id)
    if not isinstance(target, EmbeddedEnd) and not isinstance(source, EmbeddedEnd):
        # The same database knows the operation already: it would be done twice.
        with pytest.raises(InvalidArgument, match="known here"):
            await take(target, data, id=new_id, operations="keep")
        return
    await take(target, data, id=new_id, operations="keep")
    moved = await harness_of(await target.open(new_id))
    outcome = await moved.resume(BACKGROUND)
    assert isinstance(outcome, Ok)
    assert outcome.value.kind == "completed"
    await moved.close(BACKGROUND)


async def test_a_large_session_passes_through_little_memory(tmp_path: Path) -> None:
    source, target = (embedded("sqlite", tmp_path / name) for name in ("source", "target"))
    session, samples = await source.create(), Samples()
    parent: str | None = None
    for number in range(1_000):
        entry = samples.entry(parent, samples.user(f"{number} " * 4_000))
        await session.storage.commit([insert_entry(entry)], BACKGROUND)
        parent = entry.id
    await session.close(BACKGROUND)
    del session
    tracemalloc.start()
    imported = await copy_session(
        source.target, (await source.repository.list(BACKGROUND))[0].id, target.target,
        ImportOptions(), BACKGROUND,
    )  # fmt: skip
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert imported.summary.records == 1_002
    size = sum(file.stat().st_size for file in (tmp_path / "target").iterdir())
    assert size > 15_000_000
    assert peak < 6_000_000
