"""Storage versions: chained, total, atomic and refusing what is newer (§7.3, §7.4)."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.environment import Environment
from harness.errors import InvariantDefect, NewerVersion
from harness.session.fork import TreeFork
from harness.session.repo_files import JsonlSessions, SqliteSessions
from harness.storage.address import list_of, value
from harness.storage.jsonl import JsonlStorage
from harness.storage.jsonl_file import read_jsonl_metadata, write_file
from harness.storage.metadata import SessionMetadata
from harness.storage.migrations import Migration, Mutable, OldValues, Schema
from harness.storage.protocol import CommitResult, EntryScan, ListRead, Storage, UsageScan
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.storage.sqlite import SqliteStorage
from harness.storage.sqlite_copy import read_sqlite_metadata
from harness.storage.sqlite_create import write_sqlite
from harness.storage.writes import Write, append_list, insert_entry, insert_usage, set_value
from harness.testing.conformance.model import Model
from harness.testing.conformance.samples import Samples

# What a version 1 session may hold, in miniature: every namespace family, several list lengths.
OLD_VALUES: dict[tuple[str, str], Any] = {
    ("pi.lane.leaf", "main"): "e1",
    ("pi.lane.config", "main"): {"model": "m", "level": 3},
    ("pi.lane.state", "main"): {"currentOperationId": "op", "pendingNextRun": ["q"]},
    ("pi.lane.lastResult", "main"): {"kind": "run", "outcome": "completed"},
    ("pi.session.name", ""): "name\ud800",
    ("pi.entry.label", "e1"): "label",
    ("pi.op.meta", "op"): {"lane": "main"},
    ("pi.op.state", "op"): {"phase": "tools", "calls": ["running", "running", "planned"]},
    ("pi.op.tool_args", "op:s:0"): {"a": 1},
    ("pi.op.tool_memo", "op:i:n"): None,
    ("pi.op.preparation", "op:t"): {"kind": "compaction"},
    ("pi.pending.entry", "r1"): {"type": "message"},
    ("pi.pending.tool_output", "op:i"): {"content": []},
    ("app.state", "k"): {"anything": [1, 2]},
}


class VersionTwo(Migration):
    """A change of the state machine: calls get a state for staged results, which only the pending
    entries can tell; checkpoints go; labels move; frames change shape; the name becomes a list."""

    source = 1

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        match record:
            case ValueRecord(namespace="pi.op.state"):
                state = json.loads(record.json)
                if "version" in state:
                    return record
                calls = [
                    "outcome_ready"
                    if call == "running" and old.get("pi.pending.entry", f"r{index}") is not None
                    else call
                    for index, call in enumerate(state["calls"])
                ]
                return with_json(record, {**state, "calls": calls, "version": 2})
            case ValueRecord(namespace="pi.pending.tool_output"):
                return None
            case ValueRecord(namespace="pi.entry.label"):
                return ValueRecord(record.seq, "pi.label", f"entry:{record.key}", record.json)
            case ValueRecord(namespace="pi.session.name"):
                return ElementRecord(record.seq, "pi.session.names", "", record.json)
            case ElementRecord(namespace="pi.pending.assistant_frame", key="op:dropped"):
                return None
            case ElementRecord(namespace="pi.pending.assistant_frame"):
                frame = json.loads(record.json)
                return with_json(record, {"delta": frame["delta"], "shape": 2})
            case _:
                return record


class VersionThree(Migration):
    """A second step, which sees what the first one made."""

    source = 2

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        if record.namespace == "pi.op.state":
            state = json.loads(record.json)
            assert state["version"] in (2, 3)
            assert old.get("pi.pending.tool_output", "op:i") is None
            return with_json(record, {**state, "version": 3})
        return record


def with_json(record: Mutable, document: Any) -> Mutable:
    return type(record)(record.seq, record.namespace, record.key, json.dumps(document))


TWO = Schema((VersionTwo(),))
THREE = Schema((VersionTwo(), VersionThree()))
NEW_STATE = {"phase": "tools", "calls": ["running", "outcome_ready", "planned"]}


class Files(Protocol):
    """How one kind of file is written and opened at a version."""

    suffix: str

    def write(self, path: Path, records: Sequence[Record], version: int) -> None: ...
    async def open(self, path: Path, schema: Schema) -> Storage: ...
    def version(self, path: Path) -> int: ...


class Jsonl:
    suffix = "jsonl"

    def write(self, path: Path, records: Sequence[Record], version: int) -> None:
        metadata = SessionMetadata(id="s", created_at=1, storage_version=version)
        write_file(path, metadata, records)

    async def open(self, path: Path, schema: Schema) -> Storage:
        return await JsonlStorage.open(path, SystemClock(), schema=schema)

    def version(self, path: Path) -> int:
        return read_jsonl_metadata(path).storage_version


class Sqlite:
    suffix = "sqlite"

    def write(self, path: Path, records: Sequence[Record], version: int) -> None:
        write_sqlite(path, SessionMetadata(id="s", created_at=1, storage_version=version), records)

    async def open(self, path: Path, schema: Schema) -> Storage:
        return await SqliteStorage.open(path, SystemClock(), schema=schema)

    def version(self, path: Path) -> int:
        return read_sqlite_metadata(path).storage_version


@pytest.fixture(params=[Jsonl, Sqlite], ids=["jsonl", "sqlite"])
def files(request: pytest.FixtureRequest) -> Files:
    return request.param()


def old_session() -> tuple[list[Record], Model]:
    """A version 1 session: values, frames longer than a page of the converter, entries, a ledger."""
    samples, model = Samples(), Model()
    first = samples.entry(None)
    writes: list[Write] = [insert_entry(first), insert_usage(samples.row(entry_id=first.id))]
    writes += [set_value(value(Any, *place), stored) for place, stored in OLD_VALUES.items()]
    for number in range(2_500):
        writes.append(
            append_list(list_of(Any, "pi.pending.assistant_frame", "op:r"), {"delta": number})
        )
        if number < 3:
            dropped = list_of(Any, "pi.pending.assistant_frame", "op:dropped")
            writes += [
                append_list(dropped, {"delta": 0}),
                append_list(list_of(Any, "app.log"), number),
            ]
    model.apply(writes, CommitResult(1, tuple(range(1, 2 * len(writes), 2)), 1_000))
    records: list[Record] = [*model.entries, *model.rows]
    records += [
        ValueRecord(seq, *place, json.dumps(stored))
        for place, (seq, stored) in model.values.items()
    ]
    records += [
        ElementRecord(seq, *place, json.dumps(element))
        for place, elements in model.lists.items()
        for seq, element in elements
    ]
    return sorted(records, key=lambda record: record.seq), model


async def check_new(storage: Storage, model: Model, version: int) -> None:
    """The converted content; what had no conversion is as it was."""
    moved = {"pi.op.state", "pi.pending.tool_output", "pi.entry.label", "pi.session.name"}
    for (namespace, key), (seq, stored) in model.values.items():
        found = await storage.get_value(value(Any, namespace, key), BACKGROUND)
        if namespace not in moved:
            assert found is not None
            assert (found.value, found.seq) == (stored, seq)
        elif namespace != "pi.op.state":
            assert found is None
    state = await storage.get_value(value(Any, "pi.op.state", "op"), BACKGROUND)
    label = await storage.get_value(value(Any, "pi.label", "entry:e1"), BACKGROUND)
    assert state is not None
    assert label is not None
    assert state.value == {**NEW_STATE, "version": version}
    assert (label.value, label.seq) == ("label", model.values["pi.entry.label", "e1"][0])
    names = await storage.read_list(list_of(Any, "pi.session.names"), None, BACKGROUND)
    assert [(name.value, name.seq) for name in names] == [
        ("name\ud800", model.values["pi.session.name", ""][0])
    ]
    frames = list_of(Any, "pi.pending.assistant_frame", "op:r")
    found_frames = await storage.read_list(frames, ListRead(limit=10_000), BACKGROUND)
    assert [(frame.seq, frame.value) for frame in found_frames] == [
        (seq, {"delta": frame["delta"], "shape": 2})
        for seq, frame in model.lists[frames.namespace, "op:r"]
    ]
    dropped = list_of(Any, frames.namespace, "op:dropped")
    assert await storage.read_list(dropped, None, BACKGROUND) == []
    log = await storage.read_list(list_of(Any, "app.log"), None, BACKGROUND)
    assert [(element.seq, element.value) for element in log] == model.lists["app.log", ""]
    assert await storage.scan_entries(EntryScan(), BACKGROUND) == model.entries
    assert await storage.scan_usage(UsageScan(), BACKGROUND) == model.rows
    assert await storage.get_stats(BACKGROUND) == model.stats()


async def test_every_kind_of_value_and_list_is_converted_at_opening(
    tmp_path: Path, files: Files
) -> None:
    path = tmp_path / f"s.{files.suffix}"
    records, model = old_session()
    files.write(path, records, 1)
    for schema, version in ((TWO, 2), (TWO, 2), (THREE, 3), (THREE, 3)):
        storage = await files.open(path, schema)
        assert files.version(path) == version
        await check_new(storage, model, version)
        result = await storage.commit([], BACKGROUND)
        assert result.first_seq == records[-1].seq + 1
        await storage.close(BACKGROUND)


async def test_steps_run_in_a_chain(tmp_path: Path, files: Files) -> None:
    path = tmp_path / f"s.{files.suffix}"
    records, model = old_session()
    files.write(path, records, 1)
    storage = await files.open(path, THREE)
    await check_new(storage, model, 3)
    await storage.close(BACKGROUND)


async def test_a_newer_session_is_refused_and_left_alone(tmp_path: Path, files: Files) -> None:
    path = tmp_path / f"s.{files.suffix}"
    files.write(path, old_session()[0], 4)
    before = path.read_bytes()
    for schema in (THREE, Schema()):
        with pytest.raises(NewerVersion) as refused:
            await files.open(path, schema)
        assert (refused.value.found, refused.value.supported) == (4, schema.version)
    if files.suffix == "jsonl":
        assert path.read_bytes() == before
    else:
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT count(*) FROM writer_lease").fetchone() == (0,)
        connection.close()


class Interrupted(Exception):
    """A crash in the middle of a step."""


class FailsInTheMiddle(VersionThree):
    """Dies after it converted most of the session."""

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        if isinstance(record, ElementRecord) and record.seq > 4_000:
            raise Interrupted
        return super().convert(record, old)


async def test_an_interrupted_chain_goes_on_at_the_recorded_version(
    tmp_path: Path, files: Files
) -> None:
    path = tmp_path / f"s.{files.suffix}"
    records, model = old_session()
    files.write(path, records, 1)
    for _ in range(2):
        with pytest.raises(Interrupted):
            await files.open(path, Schema((VersionTwo(), FailsInTheMiddle())))
        # SQLite commits each step; a JSONL file is replaced once, when all steps are done.
        assert files.version(path) == (2 if files.suffix == "sqlite" else 1)
    storage = await files.open(path, THREE)
    await check_new(storage, model, 3)
    await storage.close(BACKGROUND)


async def test_conversions_of_converted_content_change_nothing(
    tmp_path: Path, files: Files
) -> None:
    path = tmp_path / f"s.{files.suffix}"
    records, model = old_session()
    files.write(path, records, 1)
    await (await files.open(path, TWO)).close(BACKGROUND)

    class Again(VersionTwo):
        source = 2

        def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
            if record.namespace == "pi.pending.assistant_frame":
                return record
            return super().convert(record, old)

    storage = await files.open(path, Schema((VersionTwo(), Again())))
    await check_new(storage, model, 2)
    await storage.close(BACKGROUND)


class KeepsHalfAList(Migration):
    source = 1

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        return None if isinstance(record, ElementRecord) and record.seq % 4 == 1 else record


class Renumbers(Migration):
    source = 1

    def convert(self, record: Mutable, old: OldValues) -> Mutable | None:
        return type(record)(record.seq + 1, record.namespace, record.key, record.json)


async def test_a_step_that_breaks_the_rules_changes_nothing(tmp_path: Path, files: Files) -> None:
    path = tmp_path / f"s.{files.suffix}"
    files.write(path, old_session()[0], 1)
    for step in (KeepsHalfAList(), Renumbers()):
        with pytest.raises(InvariantDefect):
            await files.open(path, Schema((step,)))
        assert files.version(path) == 1
    with pytest.raises(InvariantDefect):
        Schema((VersionThree(),))
    with pytest.raises(InvariantDefect):
        Schema((VersionThree(), VersionTwo()))
    storage = await files.open(path, Schema())
    assert (await storage.get_value(value(Any, "pi.op.state", "op"), BACKGROUND)) is not None
    await storage.close(BACKGROUND)


async def test_repositories_refuse_what_is_newer(tmp_path: Path, files: Files) -> None:
    files.write(tmp_path / f"s.{files.suffix}", old_session()[0], 9)
    kind = JsonlSessions if files.suffix == "jsonl" else SqliteSessions
    repo = kind(tmp_path, Environment.system())
    [metadata] = await repo.list(BACKGROUND)
    assert metadata.storage_version == 9
    for _ in range(2):
        with pytest.raises(NewerVersion):
            await repo.open(metadata, BACKGROUND)
        with pytest.raises(NewerVersion):
            await repo.fork(metadata, TreeFork(), BACKGROUND)
