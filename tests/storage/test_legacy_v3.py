"""Legacy coding-agent sessions: read as they are, converted by the first write (Appendix B)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.context import BACKGROUND
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
)
from harness.environment import Environment
from harness.errors import StorageCorrupt
from harness.ids import parse_uuid7, timestamp_of
from harness.messages import (
    AssistantMessage,
    CustomMessage,
    ImageContent,
    ThinkingContent,
    ToolResultMessage,
    UserMessage,
)
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.fork import BranchFork, TreeFork
from harness.session.repo_files import JsonlSessions, load_any
from harness.session.rewrite import Keep
from harness.session.session import Session
from harness.storage.address import value
from harness.storage.protocol import EntryScan, UsageScan
from harness.storage.writes import insert_entry, set_value
from harness.testing.conformance.samples import Samples

GOLDEN = Path(__file__).parents[1] / "golden" / "legacy3.jsonl"
SESSION = "0195c8d1-0000-7000-8000-00000000aaaa"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    copied = tmp_path / "2024-12-03T14-00-00-000Z_aaaa.jsonl"
    copied.write_bytes(GOLDEN.read_bytes())
    return copied


@pytest.fixture
def repo(path: Path) -> JsonlSessions:
    return JsonlSessions(path.parent, Environment.system())


async def opened(repo: JsonlSessions) -> Session:
    [metadata] = await repo.list(BACKGROUND)
    return await repo.open(metadata, BACKGROUND)


async def entries_of(session: Session) -> list[Entry]:
    return await session.storage.scan_entries(EntryScan(), BACKGROUND)


async def test_metadata(repo: JsonlSessions) -> None:
    [metadata] = await repo.list(BACKGROUND)
    assert (metadata.id, metadata.cwd, metadata.created_at) == (
        SESSION,
        "/project",
        1_733_234_400_000,
    )
    assert metadata.parent_session_id is None
    assert metadata.legacy_parent_session_path == "/nowhere/parent.jsonl"


async def test_a_parent_that_is_there_is_named_by_its_id(repo: JsonlSessions, path: Path) -> None:
    parent = {
        "type": "session",
        "version": 3,
        "id": "the-parent",
        "timestamp": "2024-12-01T00:00:00Z",
    }
    (path.parent / "parent.jsonl").write_text(json.dumps(parent) + "\n")
    metadata = await repo.get(SESSION, BACKGROUND)
    assert metadata.parent_session_id == "the-parent"
    assert metadata.legacy_parent_session_path is None


async def test_the_tree_is_normalized(repo: JsonlSessions) -> None:
    session = await opened(repo)
    entries = await entries_of(session)
    ids = [entry.id for entry in entries]
    user, answer, result, injected, state, compaction, shell, hidden, summary, last = entries
    parents = {entry.id: entry.parent_id for entry in entries}
    assert [parents[id_] for id_ in ids] == [None, *ids[:7], ids[0], ids[8]]
    for entry, second in zip(entries, (1, 2, 3, 4, 5, 6, 7, 8, 9, 10), strict=True):
        assert parse_uuid7(entry.id) == entry.id
        assert timestamp_of(entry.id) == entry.timestamp == 1_733_234_400_000 + second * 1_000
    assert isinstance(user, MessageEntry)
    assert user.message == UserMessage(content="Hello \ud800", timestamp=1_733_234_401_000)
    assert isinstance(answer, MessageEntry)
    assert isinstance(answer.message, AssistantMessage)
    assert answer.message.content[0] == ThinkingContent(thinking="hm", thinking_signature="sig")
    assert (answer.message.stop_reason, answer.message.timestamp) == ("toolUse", 1_733_234_402_001)
    assert isinstance(result, MessageEntry)
    assert isinstance(result.message, ToolResultMessage)
    assert result.message.details == {"n": 1}
    assert isinstance(injected, MessageEntry)
    assert injected.message == CustomMessage(
        custom_type="ext",
        content="injected",
        timestamp=1_733_234_404_000,
        display=False,
        details={"k": 1},
    )
    assert isinstance(state, CustomEntry)
    assert (state.custom_type, state.data) == ("state", {"count": 42})
    assert isinstance(compaction, CompactionEntry)
    assert compaction.retained_tail == (answer.message, result.message, injected.message)
    assert (compaction.from_hook, compaction.details, compaction.tokens_before) == (
        False,
        {"readFiles": ["a"]},
        5_000,
    )
    assert isinstance(shell, MessageEntry)
    assert isinstance(shell.message, CustomMessage)
    assert "$ pwd" in str(shell.message.content)
    assert isinstance(hidden, CustomEntry)
    assert isinstance(summary, BranchSummaryEntry)
    assert (summary.from_id, summary.from_hook) == (hidden.id, True)
    assert isinstance(last, MessageEntry)
    assert isinstance(last.message, UserMessage)
    assert last.message.content[1] == ImageContent(data="AA==", mime_type="image/png")
    await session.close(BACKGROUND)


async def test_values_and_totals(repo: JsonlSessions) -> None:
    session = await opened(repo)
    storage = session.storage
    entries = await entries_of(session)
    leaf = await storage.get_value(values.lane_leaf("main"), BACKGROUND)
    state = await storage.get_value(values.lane_state("main"), BACKGROUND)
    name = await storage.get_value(values.SESSION_NAME, BACKGROUND)
    assert leaf is not None
    assert leaf.value == entries[-1].id
    assert state is not None
    assert state.value == IDLE_LANE
    assert name is not None
    assert name.value == "Refactor"
    labels = await storage.scan_values(values.entry_label(""), BACKGROUND)
    assert {label.address.key: label.value for label in labels} == {
        entries[0].id: "on the retained ancestor",
        entries[1].id: "second",
    }
    assert await storage.get_value(values.lane_config("main"), BACKGROUND) is None
    stats = await storage.get_stats(BACKGROUND)
    assert stats.message_count == 6
    assert (stats.usage.input, stats.usage.output, stats.usage.cost.total) == (1_110, 105, 2.75)
    assert await storage.scan_usage(UsageScan(), BACKGROUND) == []
    await session.close(BACKGROUND)


async def test_reading_changes_neither_the_file_nor_the_ids(
    repo: JsonlSessions, path: Path
) -> None:
    before = path.read_bytes()
    seen: list[list[Entry]] = []
    for _ in range(3):
        session = await opened(repo)
        seen.append(await entries_of(session))
        await session.storage.commit([], BACKGROUND)
        await session.close(BACKGROUND)
        assert path.read_bytes() == before
    assert seen[0] == seen[1] == seen[2]
    assert [found.name for found in path.parent.iterdir()] == [path.name]


async def test_the_first_write_converts_the_file(repo: JsonlSessions, path: Path) -> None:
    session = await opened(repo)
    before = await entries_of(session)
    stats = await session.storage.get_stats(BACKGROUND)
    leaf = Samples().entry(before[-1].id)
    await session.storage.commit(
        [insert_entry(leaf), set_value(value(Any, "app.v"), 1)], BACKGROUND
    )
    await session.storage.commit([set_value(value(Any, "app.v"), 2)], BACKGROUND)
    header = json.loads(path.read_text().splitlines()[0])
    assert (header["v"], header["kind"], header["id"]) == (4, "header", SESSION)
    assert header["legacyParentSessionPath"] == "/nowhere/parent.jsonl"
    for _ in range(2):
        assert (await entries_of(session))[:-1] == before
        after = await session.storage.get_stats(BACKGROUND)
        assert (after.message_count, after.usage) == (stats.message_count + 1, stats.usage)
        [row] = await session.storage.scan_usage(UsageScan(), BACKGROUND)
        assert (row.adjustment, row.details, row.usage) == (
            True,
            {"source": "v3-import"},
            stats.usage,
        )
        await session.close(BACKGROUND)
        session = await opened(repo)
        assert session.metadata.legacy_parent_session_path == "/nowhere/parent.jsonl"
    await session.close(BACKGROUND)


async def test_forks_and_rewrites_of_a_legacy_session(repo: JsonlSessions, path: Path) -> None:
    session = await opened(repo)
    before = await entries_of(session)
    fork = await repo.fork(session.metadata, TreeFork(id="tree"), BACKGROUND)
    assert await entries_of(fork) == before
    assert await fork.storage.get_value(values.lane_config("main"), BACKGROUND) is None
    await fork.close(BACKGROUND)
    await session.close(BACKGROUND)
    assert path.read_bytes() == GOLDEN.read_bytes()
    branch = await repo.fork(session.metadata, BranchFork(id="branch"), BACKGROUND)
    assert [entry.id for entry in await entries_of(branch)] == [
        before[0].id,
        before[8].id,
        before[9].id,
    ]
    await branch.close(BACKGROUND)
    metadata = await repo.rewrite(session.metadata, Keep(), BACKGROUND)
    again = await repo.open(metadata, BACKGROUND)
    assert await entries_of(again) == before
    assert len(await again.storage.scan_usage(UsageScan(), BACKGROUND)) == 1
    await again.close(BACKGROUND)


async def test_compacting_converts_too(repo: JsonlSessions) -> None:
    session = await opened(repo)
    before, stats = await entries_of(session), await session.storage.get_stats(BACKGROUND)
    await session.storage.compact(BACKGROUND)  # pyright: ignore[reportAttributeAccessIssue]
    assert await session.storage.get_stats(BACKGROUND) == stats
    await session.close(BACKGROUND)
    session = await opened(repo)
    assert await entries_of(session) == before
    assert await session.storage.get_stats(BACKGROUND) == stats
    await session.close(BACKGROUND)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"parentId":"a0000002"', b'"parentId":"absent00"', "names missing parent absent00"),
        (b'"id":"a0000002"', b'"id":"a0000001"', "is there twice"),
        (b'{"type":"custom",', b'{"type":"custom"', "line 9 at byte "),
        (b'"version":3', b'"version":1', "legacy format 1"),
        (b'"type":"custom",', b'"type":7,', "line 9 at byte "),
    ],
)
async def test_damage_is_refused(
    path: Path, repo: JsonlSessions, old: bytes, new: bytes, message: str
) -> None:
    metadata = await repo.get(SESSION, BACKGROUND)
    damaged = GOLDEN.read_bytes().replace(old, new, 1)
    path.write_bytes(damaged)
    with pytest.raises(StorageCorrupt, match=message):
        # The listing leaves such a file out, so it is opened by its path.
        load_any(path)
    assert path.read_bytes() == damaged
    assert metadata.id == SESSION


async def test_a_torn_last_line_is_left_out(path: Path, repo: JsonlSessions) -> None:
    lines = GOLDEN.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-9])
    session = await opened(repo)
    name = await session.storage.get_value(values.SESSION_NAME, BACKGROUND)
    assert name is not None
    assert name.value == "Old name"
    await session.close(BACKGROUND)
