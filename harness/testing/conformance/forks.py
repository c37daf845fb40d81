"""Conformance: forks copy the conversation and nothing of the work on it (§2.7)."""

from __future__ import annotations

import asyncio
from typing import Any

from harness.context import BACKGROUND
from harness.entries import Entry
from harness.errors import InvalidArgument, SessionNotFound
from harness.messages import AgentToolResult
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE, LaneState
from harness.operation.payloads import PendingMessage
from harness.operation.state import CompactionIntent, OperationMeta
from harness.session.fork import BranchFork, TreeFork
from harness.session.repo import CreateOptions
from harness.session.session import Session
from harness.settings import LaneConfiguration, ModelIdentity
from harness.storage.address import ValueList, list_of, value
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import EntryScan, Storage, UsageScan
from harness.storage.writes import Write, append_list, insert_entry, insert_usage, set_value
from harness.testing.conformance.backend import expect
from harness.testing.conformance.repositories import RepositoryBackend
from harness.testing.conformance.samples import Samples
from harness.usage import ZERO_USAGE

CONFIGURATION = LaneConfiguration(
    model=ModelIdentity(provider="p", model_id="m"), thinking_level="high", active_tool_names=("t",)
)


async def busy_session(session: Session, samples: Samples) -> list[str]:
    """A tree with two lanes, labels, a name, a ledger, an open operation and application content.

    Returns the entry ids: 0-4 in one line (3 is a compaction), 5-6 beside it below 1.
    """
    chain = samples.chain(None, 3)
    operation = samples.new_id()
    compaction = samples.entry(chain[-1].id, samples.compaction())
    last = samples.entry(compaction.id, samples.assistant())
    side = samples.chain(chain[1].id, 2)
    entries = [*chain, compaction, last, *side]
    meta = OperationMeta(
        operation_id=operation,
        lane="main",
        source_leaf_id=None,
        started_at=1,
        intent=CompactionIntent(),
    )
    writes: list[Write] = [insert_entry(entry) for entry in entries]
    writes += [insert_usage(samples.row(entry_id=entry.id)) for entry in entries]
    writes += [
        set_value(values.SESSION_NAME, "named\ud800"),
        set_value(values.lane_leaf("main"), last.id),
        set_value(values.lane_config("main"), CONFIGURATION),
        set_value(
            values.lane_state("main"),
            LaneState(current_operation_id=operation, pending_next_run=("queued",)),
        ),
        set_value(values.lane_leaf("side"), side[-1].id),
        set_value(values.lane_config("side"), CONFIGURATION),
        set_value(values.lane_state("side"), IDLE_LANE),
        set_value(values.entry_label(chain[0].id), "first"),
        set_value(values.entry_label(last.id), "last"),
        set_value(values.entry_label(side[0].id), "side"),
        set_value(values.operation_meta(operation), meta),
        set_value(values.operation_tool_args(operation, "s", 0), {"a": 1}),
        set_value(values.pending_tool_output(operation, "i"), AgentToolResult(content=())),
        set_value(values.pending_entry("queued"), PendingMessage(payload=samples.user().message)),
        append_list(_frames(operation), {"type": "text_delta"}),
        set_value(value(Any, "app.state"), "the application's"),
        append_list(list_of(Any, "app.log"), "the application's"),
    ]
    await session.storage.commit(writes, BACKGROUND)
    return [entry.id for entry in entries]


def _frames(operation: str) -> ValueList[Any]:
    return list_of(Any, "pi.pending.assistant_frame", f"{operation}:r")


async def operation_of(storage: Storage) -> str:
    """The operation that is open on the main lane."""
    state = await storage.get_value(values.lane_state("main"), BACKGROUND)
    assert state is not None
    assert state.value.current_operation_id is not None
    return state.value.current_operation_id


async def entries_of(storage: Storage) -> list[Entry]:
    """Every entry."""
    return await storage.scan_entries(EntryScan(), BACKGROUND)


async def _values_of(storage: Storage) -> dict[tuple[str, str], Any]:
    """Everything that could have been copied, by address."""
    found: dict[tuple[str, str], Any] = {}
    for space in (
        "pi.lane.leaf", "pi.lane.config", "pi.lane.state", "pi.lane.lastResult", "pi.session.name",
        "pi.entry.label", "pi.op.meta", "pi.op.state", "pi.op.tool_args", "pi.pending.tool_output",
        "pi.pending.entry", "app.state",
    ):  # fmt: skip
        for stored in await storage.scan_values(value(Any, space), BACKGROUND):
            found[space, stored.address.key] = stored.value
    return found


class ForkConformance:
    """Forks of sessions in rest and at work."""

    async def test_a_branch_fork_copies_one_path(self, repositories: RepositoryBackend) -> None:
        repo, samples = repositories.repository(), Samples()
        source = await repo.create(CreateOptions(cwd="/w", metadata={"k": 1}), BACKGROUND)
        ids = await busy_session(source, samples)
        before = await entries_of(source.storage)
        wanted = repositories.new_id()
        fork = await repo.fork(source.metadata, BranchFork(id=wanted), BACKGROUND)
        assert fork.metadata.parent_session_id == source.id
        assert (fork.id, fork.metadata.cwd, fork.metadata.metadata) == (wanted, "/w", {"k": 1})
        copied = await entries_of(fork.storage)
        assert copied == [entry for entry in before if entry.id in ids[:5]]
        found = await _values_of(fork.storage)
        assert {address: found[address] for address in found if address[0] != "pi.lane.config"} == {
            ("pi.lane.leaf", "main"): ids[4],
            ("pi.lane.state", "main"): {"currentOperationId": None, "pendingNextRun": []},
            ("pi.session.name", ""): "named\ud800",
            ("pi.entry.label", ids[0]): "first",
            ("pi.entry.label", ids[4]): "last",
        }
        config = await fork.storage.get_value(values.lane_config("main"), BACKGROUND)
        assert config is not None
        assert config.value == CONFIGURATION
        await _fresh_ledger(fork.storage, messages=4)
        await _goes_on(fork, samples, ids[4])
        await _unharmed(source, before)

    async def test_fork_points(self, repositories: RepositoryBackend) -> None:
        repo, samples = repositories.repository(), Samples()
        source = await repo.create(CreateOptions(), BACKGROUND)
        ids = await busy_session(source, samples)
        expected = {
            BranchFork(entry_id=ids[2]): ids[:3],
            BranchFork(entry_id=ids[2], position="before"): ids[:2],
            BranchFork(entry_id=ids[0], position="before"): [],
            BranchFork(entry_id=ids[3]): ids[:4],
            BranchFork(entry_id=ids[6]): [*ids[:2], *ids[5:]],
            BranchFork(entry_id=ids[5], position="before"): ids[:2],
            BranchFork(position="before"): ids[:4],
        }
        for options, path in expected.items():
            fork = await repo.fork(source.metadata, options, BACKGROUND)
            assert [entry.id for entry in await entries_of(fork.storage)] == path
            leaf = await fork.storage.get_value(values.lane_leaf("main"), BACKGROUND)
            assert leaf is not None
            assert leaf.value == (path[-1] if path else None)
            assert await fork.lane_names(BACKGROUND) == ["main"]
            await _goes_on(fork, samples, path[-1] if path else None)
        with expect(InvalidArgument):
            await repo.fork(source.metadata, BranchFork(entry_id=samples.new_id()), BACKGROUND)
        await source.close(BACKGROUND)

    async def test_a_tree_fork_copies_every_branch_and_lane(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        source = await repo.create(CreateOptions(), BACKGROUND)
        ids = await busy_session(source, samples)
        before = await entries_of(source.storage)
        fork = await repo.fork(source.metadata, TreeFork(), BACKGROUND)
        assert await entries_of(fork.storage) == before
        assert await fork.lane_names(BACKGROUND) == ["main", "side"]
        found = await _values_of(fork.storage)
        assert found["pi.lane.leaf", "main"] == ids[4]
        assert found["pi.lane.leaf", "side"] == ids[6]
        assert {key for space, key in found if space == "pi.entry.label"} == {
            ids[0],
            ids[4],
            ids[5],
        }
        assert {space for space, _ in found} == {
            "pi.lane.leaf", "pi.lane.state", "pi.lane.config", "pi.session.name", "pi.entry.label",
        }  # fmt: skip
        for lane in ("main", "side"):
            state = await fork.storage.get_value(values.lane_state(lane), BACKGROUND)
            assert state is not None
            assert state.value == IDLE_LANE
        frames = _frames(await operation_of(source.storage))
        assert len(await source.storage.read_list(frames, None, BACKGROUND)) == 1
        assert await fork.storage.read_list(frames, None, BACKGROUND) == []
        assert await fork.storage.read_list(list_of(Any, "app.log"), None, BACKGROUND) == []
        await _fresh_ledger(fork.storage, messages=6)
        await _goes_on(fork, samples, ids[6])
        await _unharmed(source, before)

    async def test_forks_of_an_unconfigured_session(self, repositories: RepositoryBackend) -> None:
        repo = repositories.repository()
        source = await repo.create(CreateOptions(), BACKGROUND)
        for options in (BranchFork(), BranchFork(position="before"), TreeFork()):
            fork = await repo.fork(source.metadata, options, BACKGROUND)
            assert await entries_of(fork.storage) == []
            assert await fork.storage.get_value(values.lane_config("main"), BACKGROUND) is None
            assert await fork.lane_names(BACKGROUND) == ["main"]
            await fork.close(BACKGROUND)
        await source.close(BACKGROUND)

    async def test_forks_of_closed_sessions_and_of_forks(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        source = await repo.create(CreateOptions(), BACKGROUND)
        ids = await busy_session(source, samples)
        await source.close(BACKGROUND)
        first = await repo.fork(source.metadata, TreeFork(), BACKGROUND)
        await first.close(BACKGROUND)
        second = await repo.fork(first.metadata, BranchFork(entry_id=ids[6]), BACKGROUND)
        assert second.metadata.parent_session_id == first.id
        assert [e.id for e in await entries_of(second.storage)] == [*ids[:2], *ids[5:]]
        await second.close(BACKGROUND)
        with expect(SessionNotFound):
            nobody = SessionMetadata(id=repositories.new_id(), created_at=1)
            await repo.fork(nobody, TreeFork(), BACKGROUND)
        with expect(InvalidArgument):
            await repo.fork(source.metadata, TreeFork(id=first.id), BACKGROUND)

    async def test_a_fork_of_a_session_at_work_is_one_moment_of_it(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        source = await repo.create(CreateOptions(), BACKGROUND)
        done = False

        async def work() -> None:
            leaf: str | None = None
            while not done:
                pair = samples.chain(leaf, 2)
                leaf = pair[-1].id
                moved = set_value(values.lane_leaf("main"), leaf)
                await source.storage.commit([*(insert_entry(e) for e in pair), moved], BACKGROUND)
                await asyncio.sleep(0)

        worker = asyncio.create_task(work())
        forks: list[Session] = []
        for number in range(6):
            options = TreeFork() if number % 2 else BranchFork()
            forks.append(await repo.fork(source.metadata, options, BACKGROUND))
        done = True
        await worker
        for fork in forks:
            copied = await entries_of(fork.storage)
            leaf = await fork.storage.get_value(values.lane_leaf("main"), BACKGROUND)
            assert leaf is not None
            assert len(copied) % 2 == 0
            assert leaf.value == (copied[-1].id if copied else None)
            await fork.close(BACKGROUND)
        await source.close(BACKGROUND)


async def _fresh_ledger(storage: Storage, *, messages: int) -> None:
    stats = await storage.get_stats(BACKGROUND)
    assert (stats.message_count, stats.usage) == (messages, ZERO_USAGE)
    assert await storage.scan_usage(UsageScan(), BACKGROUND) == []


async def _goes_on(fork: Session, samples: Samples, leaf: str | None) -> None:
    """The fork takes writes, and closing it leaves it complete."""
    entry = samples.entry(leaf)
    await fork.storage.commit([insert_entry(entry), insert_usage(samples.row())], BACKGROUND)
    assert (await entries_of(fork.storage))[-1].id == entry.id
    await fork.close(BACKGROUND)


async def _unharmed(source: Session, before: list[Entry]) -> None:
    assert await entries_of(source.storage) == before
    assert len(await source.storage.scan_usage(UsageScan(), BACKGROUND)) == len(before)
    metas = await source.storage.scan_values(values.operation_meta(""), BACKGROUND)
    assert [meta.address.key for meta in metas] == [await operation_of(source.storage)]
    await source.close(BACKGROUND)
