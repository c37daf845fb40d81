"""Conformance: the precise rewrite keeps a session whole while parts of it go (§2.9)."""

from __future__ import annotations

from typing import Any

import msgspec

from harness.context import BACKGROUND
from harness.entries import CompactionEntry, Entry, MessageEntry
from harness.errors import InvalidArgument, SessionInUse
from harness.messages import UserMessage
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.repo import CreateOptions, SessionRepo
from harness.session.rewrite import Keep
from harness.session.session import Session
from harness.storage.address import list_of, value
from harness.storage.metadata import SessionMetadata
from harness.storage.protocol import BranchScan, ListRead, UsageScan
from harness.storage.records import ElementRecord, ValueRecord
from harness.storage.writes import append_list, delete_value, insert_entry, set_value
from harness.testing.conformance.backend import expect
from harness.testing.conformance.forks import busy_session, entries_of, operation_of
from harness.testing.conformance.repositories import RepositoryBackend
from harness.testing.conformance.samples import Samples
from harness.usage import UsageRow, add_usage


class Without(Keep):
    """Drops entries and their ledger rows, one list and one value, and blanks summaries."""

    def __init__(self, *entry_ids: str, renamed: dict[str, str] | None = None) -> None:
        self._gone = set(entry_ids)
        self._renamed = renamed or {}

    def entry(self, entry: Entry) -> Entry | None:
        if entry.id in self._gone:
            return None
        if isinstance(entry, CompactionEntry):
            return msgspec.structs.replace(entry, summary="erased", retained_tail=())
        return msgspec.structs.replace(entry, id=self._renamed.get(entry.id, entry.id))

    def usage(self, row: UsageRow) -> UsageRow | None:
        return None if row.adjustment else row

    def value(self, record: ValueRecord) -> ValueRecord | None:
        return None if record.namespace == "app.secret" else record

    def element(self, record: ElementRecord) -> ElementRecord | None:
        return None if record.json == '"secret"' else record


async def idle_session(repo: SessionRepo, samples: Samples) -> tuple[Session, list[str]]:
    """The session of the fork tests with its operation over."""
    session = await repo.create(CreateOptions(), BACKGROUND)
    ids = await busy_session(session, samples)
    operation = await operation_of(session.storage)
    await session.storage.commit(
        [
            set_value(values.lane_state("main"), IDLE_LANE),
            delete_value(values.operation_meta(operation)),
            set_value(value(Any, "app.secret"), 1),
            append_list(list_of(Any, "app.kept"), "one"),
            append_list(list_of(Any, "app.kept"), "secret"),
            append_list(list_of(Any, "app.kept"), "two"),
        ],
        BACKGROUND,
    )
    return session, ids


class RewriteConformance:
    """Rewrites of closed sessions; open ones are refused."""

    async def test_keeping_everything_changes_only_the_generation(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        session, _ = await idle_session(repo, samples)
        before = await entries_of(session.storage)
        rows = await session.storage.scan_usage(UsageScan(), BACKGROUND)
        stats = await session.storage.get_stats(BACKGROUND)
        next_seq = (await session.storage.commit([], BACKGROUND)).first_seq
        await session.close(BACKGROUND)
        metadata = await repo.rewrite(session.metadata, Keep(), BACKGROUND)
        assert metadata == msgspec.structs.replace(session.metadata, store_generation=1)
        assert await repo.get(session.id, BACKGROUND) == metadata
        again = await repo.open(metadata, BACKGROUND)
        assert again.metadata == metadata
        assert await entries_of(again.storage) == before
        assert await again.storage.scan_usage(UsageScan(), BACKGROUND) == rows
        assert await again.storage.get_stats(BACKGROUND) == stats
        assert (await again.storage.commit([], BACKGROUND)).first_seq >= next_seq
        await again.close(BACKGROUND)
        assert (await repo.rewrite(metadata, Keep(), BACKGROUND)).store_generation == 2

    async def test_what_is_dropped_is_gone_and_the_rest_holds_together(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        session, ids = await idle_session(repo, samples)
        kept_list = list_of(Any, "app.kept")
        cursor = (await session.storage.read_list(kept_list, None, BACKGROUND))[1].seq
        before = {entry.id: entry for entry in await entries_of(session.storage)}
        await session.close(BACKGROUND)
        # The root, a label's target in the middle of the side branch, and the main lane's leaf.
        metadata = await repo.rewrite(session.metadata, Without(ids[0], ids[4], ids[5]), BACKGROUND)
        again = await repo.open(metadata, BACKGROUND)
        storage = again.storage
        after = await entries_of(storage)
        assert [(e.id, e.parent_id, e.seq, e.timestamp) for e in after] == [
            (id_, parent, before[id_].seq, before[id_].timestamp)
            for id_, parent in (
                (ids[1], None),
                (ids[2], ids[1]),
                (ids[3], ids[2]),
                (ids[6], ids[1]),
            )
        ]
        compaction = after[2]
        assert isinstance(compaction, CompactionEntry)
        assert (compaction.summary, compaction.retained_tail) == ("erased", ())
        leaves = await storage.scan_values(values.lane_leaf_inventory_prefix(), BACKGROUND)
        assert {leaf.address.key: leaf.value for leaf in leaves} == {"main": ids[3], "side": ids[6]}
        assert await storage.scan_values(values.entry_label(""), BACKGROUND) == []
        path = await storage.scan_branch(BranchScan(start=ids[6]), BACKGROUND)
        assert [entry.id for entry in path] == [ids[6], ids[1]]
        rows = await storage.scan_usage(UsageScan(), BACKGROUND)
        assert len(rows) == 7
        named = {row.entry_id for row in rows if isinstance(row.entry_id, str)}
        assert named == {ids[1], ids[2], ids[3], ids[6]}
        total = rows[0].usage
        for row in rows[1:]:
            total = add_usage(total, row.usage)
        stats = await storage.get_stats(BACKGROUND)
        assert (stats.message_count, stats.usage) == (3, total)
        assert await storage.get_value(value(Any, "app.secret"), BACKGROUND) is None
        assert [e.value for e in await storage.read_list(kept_list, None, BACKGROUND)] == [
            "one",
            "two",
        ]
        later = await storage.read_list(kept_list, ListRead(cursor=cursor), BACKGROUND)
        assert [element.value for element in later] == ["two"]
        await storage.commit([insert_entry(samples.entry(ids[3]))], BACKGROUND)
        await again.close(BACKGROUND)

    async def test_entries_can_get_new_ids(self, repositories: RepositoryBackend) -> None:
        repo, samples = repositories.repository(), Samples()
        session, ids = await idle_session(repo, samples)
        await session.close(BACKGROUND)
        renamed = {id_: samples.new_id() for id_ in (ids[0], ids[1], ids[4])}
        metadata = await repo.rewrite(
            session.metadata, Without(ids[2], renamed=renamed), BACKGROUND
        )
        again = await repo.open(metadata, BACKGROUND)
        after = await entries_of(again.storage)
        assert [(e.id, e.parent_id) for e in after] == [
            (renamed[ids[0]], None),
            (renamed[ids[1]], renamed[ids[0]]),
            (ids[3], renamed[ids[1]]),
            (renamed[ids[4]], ids[3]),
            (ids[5], renamed[ids[1]]),
            (ids[6], ids[5]),
        ]
        labels = await again.storage.scan_values(values.entry_label(""), BACKGROUND)
        assert {label.address.key for label in labels} == {renamed[ids[0]], renamed[ids[4]], ids[5]}
        leaf = await again.storage.get_value(values.lane_leaf("main"), BACKGROUND)
        assert leaf is not None
        assert leaf.value == renamed[ids[4]]
        rows = await again.storage.scan_usage(UsageScan(), BACKGROUND)
        assert {renamed[ids[0]], renamed[ids[1]], renamed[ids[4]]} <= {row.entry_id for row in rows}
        await again.close(BACKGROUND)

    async def test_an_open_session_or_operation_refuses(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        session = await repo.create(CreateOptions(), BACKGROUND)
        await busy_session(session, samples)
        before = await entries_of(session.storage)
        with expect(SessionInUse):
            await repo.rewrite(session.metadata, Keep(), BACKGROUND)
        await session.close(BACKGROUND)
        with expect(InvalidArgument):
            await repo.rewrite(session.metadata, Keep(), BACKGROUND)
        await _as_before(repo, session.metadata, before)

    async def test_a_failing_decision_leaves_the_session_as_it_was(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        session, ids = await idle_session(repo, samples)
        before = await entries_of(session.storage)
        await session.close(BACKGROUND)

        class Fails(Keep):
            def entry(self, entry: Entry) -> Entry | None:
                if entry.id == ids[4]:
                    raise RuntimeError("no decision")
                return None

        class FailsLate(Keep):
            def element(self, record: ElementRecord) -> ElementRecord | None:
                raise RuntimeError("no decision")

        for keep in (Fails(), FailsLate()):
            with expect(RuntimeError):
                await repo.rewrite(session.metadata, keep, BACKGROUND)
            await _as_before(repo, session.metadata, before)

    async def test_erased_text_is_nowhere(self, repositories: RepositoryBackend) -> None:
        repo, samples = repositories.repository(), Samples()
        session, ids = await idle_session(repo, samples)
        secret = samples.entry(ids[4], samples.user("the secret word"))
        await session.storage.commit(
            [insert_entry(secret), set_value(values.lane_leaf("main"), secret.id)], BACKGROUND
        )
        await session.close(BACKGROUND)

        class Erase(Keep):
            def entry(self, entry: Entry) -> Entry | None:
                if not isinstance(entry, MessageEntry) or entry.id != secret.id:
                    return entry
                return msgspec.structs.replace(
                    entry, message=UserMessage(content="(removed)", timestamp=1)
                )

        metadata = await repo.rewrite(session.metadata, Erase(), BACKGROUND)
        again = await repo.open(metadata, BACKGROUND)
        last = (await entries_of(again.storage))[-1]
        assert isinstance(last, MessageEntry)
        assert isinstance(last.message, UserMessage)
        assert (last.id, last.message.content) == (secret.id, "(removed)")
        await again.close(BACKGROUND)


async def _as_before(repo: SessionRepo, metadata: SessionMetadata, before: list[Entry]) -> None:
    session = await repo.open(metadata, BACKGROUND)
    assert session.metadata == metadata
    assert await entries_of(session.storage) == before
    await session.close(BACKGROUND)
