"""Conformance: discovery, lifecycle and ownership of sessions (§2.8)."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from harness.context import BACKGROUND
from harness.errors import InvalidArgument, SessionInUse, SessionNotFound, StorageClosed
from harness.operation import values
from harness.operation.lane_state import IDLE_LANE
from harness.session.repo import CreateOptions, SessionRepo
from harness.session.session import Session
from harness.storage.address import value
from harness.storage.metadata import STORAGE_VERSION, SessionMetadata
from harness.storage.protocol import EntryScan
from harness.storage.writes import insert_entry, set_value
from harness.testing.conformance.backend import Capabilities, expect, require
from harness.testing.conformance.samples import Samples
from harness.usage import EMPTY_STATS

NOTE = value(Any, "app.note")


class RepositoryBackend(Protocol):
    """One kind of repository under test. A new instance serves each test."""

    name: str
    capabilities: Capabilities

    def new_id(self) -> str:
        """An id for a session that this kind takes and that nothing has yet."""
        ...

    def repository(self) -> SessionRepo:
        """A repository over this instance's data; each call gives another view of the same data."""
        ...


class LifecycleOfSessions:
    """Create, open, list, get, delete."""

    async def test_a_new_session_has_an_idle_main_lane(
        self, repositories: RepositoryBackend
    ) -> None:
        repo = repositories.repository()
        session = await repo.create(CreateOptions(), BACKGROUND)
        storage = session.storage
        leaf = await storage.get_value(values.lane_leaf("main"), BACKGROUND)
        state = await storage.get_value(values.lane_state("main"), BACKGROUND)
        assert leaf is not None
        assert leaf.value is None
        assert state is not None
        assert state.value == IDLE_LANE
        assert await storage.get_value(values.lane_config("main"), BACKGROUND) is None
        assert await session.lane_names(BACKGROUND) == ["main"]
        assert await storage.scan_entries(EntryScan(), BACKGROUND) == []
        assert await storage.get_stats(BACKGROUND) == EMPTY_STATS
        await session.close(BACKGROUND)

    async def test_metadata_comes_back(self, repositories: RepositoryBackend) -> None:
        repo = repositories.repository()
        options = CreateOptions(
            id=repositories.new_id(),
            cwd="/tmp/é",
            parent_session_id=repositories.new_id(),
            metadata={"n": [1, "é\u2028"], "m": {}, "": {"deep": [None, True, 1.5, 2**60]}},
        )
        session = await repo.create(options, BACKGROUND)
        metadata = session.metadata
        assert (metadata.id, metadata.cwd, metadata.parent_session_id, metadata.metadata) == (
            options.id,
            options.cwd,
            options.parent_session_id,
            options.metadata,
        )
        assert metadata.storage_version == STORAGE_VERSION
        await session.close(BACKGROUND)
        for view in (repo, repositories.repository()):
            assert await view.get(metadata.id, BACKGROUND) == metadata
            assert await view.list(BACKGROUND) == [metadata]
        reopened = await repo.open(metadata, BACKGROUND)
        assert reopened.metadata == metadata
        await reopened.close(BACKGROUND)

    async def test_metadata_of_any_text_comes_back_or_is_refused(
        self, repositories: RepositoryBackend
    ) -> None:
        repo = repositories.repository()
        options = CreateOptions(metadata={"n": [1, "\ud800", "\x00"], "\udfff": "\x00"})
        if not repositories.capabilities.any_metadata:
            for metadata in (options.metadata, {"n": "\x00"}, {"\ud800": 1}):
                with expect(InvalidArgument):
                    await repo.create(CreateOptions(metadata=metadata), BACKGROUND)
            assert await repo.list(BACKGROUND) == []
            return
        session = await repo.create(options, BACKGROUND)
        await session.close(BACKGROUND)
        found = await repositories.repository().get(session.id, BACKGROUND)
        assert found.metadata == options.metadata

    async def test_sessions_are_listed_oldest_first_and_kept_apart(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, samples = repositories.repository(), Samples()
        sessions = [await repo.create(CreateOptions(), BACKGROUND) for _ in range(4)]
        assert len({session.id for session in sessions}) == 4
        for number, session in enumerate(sessions):
            await session.storage.commit(
                [insert_entry(samples.entry(None)), set_value(NOTE, number)], BACKGROUND
            )
        listed = await repo.list(BACKGROUND)
        assert sorted(listed, key=lambda m: (m.created_at, m.id)) == listed
        assert {metadata.id for metadata in listed} == {session.id for session in sessions}
        for session in sessions:
            await session.close(BACKGROUND)
        for number, session in enumerate(sessions):
            reopened = await repo.open(session.metadata, BACKGROUND)
            found = await reopened.storage.get_value(NOTE, BACKGROUND)
            assert found is not None
            assert found.value == number
            assert len(await reopened.storage.scan_entries(EntryScan(), BACKGROUND)) == 1
            await reopened.close(BACKGROUND)

    async def test_ids_are_taken_once_and_must_be_plain(
        self, repositories: RepositoryBackend
    ) -> None:
        repo, taken = repositories.repository(), repositories.new_id()
        session = await repo.create(CreateOptions(id=taken), BACKGROUND)
        await session.storage.commit([set_value(NOTE, "mine")], BACKGROUND)
        with expect(InvalidArgument, SessionInUse):
            await repo.create(CreateOptions(id=taken), BACKGROUND)
        await session.close(BACKGROUND)
        with expect(InvalidArgument):
            await repo.create(CreateOptions(id=taken), BACKGROUND)
        for bad in ("", "../up", "a/b", ".hidden", "a b", "a\x00", "é", "x" * 129, "-x"):
            with expect(InvalidArgument):
                await repo.create(CreateOptions(id=bad), BACKGROUND)
        session = await repo.open(session.metadata, BACKGROUND)
        found = await session.storage.get_value(NOTE, BACKGROUND)
        assert found is not None
        assert found.value == "mine"
        await session.close(BACKGROUND)

    async def test_a_session_has_one_open_owner(self, repositories: RepositoryBackend) -> None:
        repo = repositories.repository()
        session = await repo.create(CreateOptions(), BACKGROUND)
        await _refused(repo, session)
        await session.close(BACKGROUND)
        again = await repo.open(session.metadata, BACKGROUND)
        await _refused(repo, again)
        with expect(StorageClosed):
            await session.storage.get_stats(BACKGROUND)
        await again.close(BACKGROUND)
        opened = await asyncio.gather(
            *(repo.open(session.metadata, BACKGROUND) for _ in range(5)), return_exceptions=True
        )
        winners = [one for one in opened if isinstance(one, Session)]
        assert len(winners) == 1
        assert sum(isinstance(one, SessionInUse) for one in opened) == 4
        await winners[0].close(BACKGROUND)

    async def test_another_view_of_the_same_data_is_refused_too(
        self, repositories: RepositoryBackend
    ) -> None:
        require(repositories, "multi_process_lease")
        repo, other = repositories.repository(), repositories.repository()
        session = await repo.create(CreateOptions(), BACKGROUND)
        await _refused(other, session)
        await session.close(BACKGROUND)
        again = await other.open(session.metadata, BACKGROUND)
        await _refused(repo, again)
        await again.close(BACKGROUND)

    async def test_deleting_is_for_good(self, repositories: RepositoryBackend) -> None:
        repo, gone = repositories.repository(), repositories.new_id()
        session = await repo.create(CreateOptions(id=gone), BACKGROUND)
        await session.storage.commit([set_value(NOTE, 1)], BACKGROUND)
        with expect(SessionInUse):
            await repo.delete(session.metadata, BACKGROUND)
        await session.close(BACKGROUND)
        await repo.delete(session.metadata, BACKGROUND)
        assert await repo.list(BACKGROUND) == []
        with expect(SessionNotFound):
            await repo.get(gone, BACKGROUND)
        with expect(SessionNotFound):
            await repo.open(session.metadata, BACKGROUND)
        with expect(SessionNotFound):
            await repo.delete(session.metadata, BACKGROUND)
        fresh = await repo.create(CreateOptions(id=gone), BACKGROUND)
        assert await fresh.storage.get_value(NOTE, BACKGROUND) is None
        await fresh.close(BACKGROUND)

    async def test_unknown_sessions_are_not_found(self, repositories: RepositoryBackend) -> None:
        repo, nobody = repositories.repository(), repositories.new_id()
        assert await repo.list(BACKGROUND) == []
        for unknown in (nobody, "nobody", "../etc/passwd", ""):
            with expect(SessionNotFound):
                await repo.get(unknown, BACKGROUND)
            with expect(SessionNotFound):
                await repo.open(SessionMetadata(id=unknown, created_at=1), BACKGROUND)
        # A failed opening leaves nothing taken.
        session = await repo.create(CreateOptions(id=nobody), BACKGROUND)
        await session.close(BACKGROUND)


async def _refused(repo: SessionRepo, session: Session) -> None:
    with expect(SessionInUse):
        await repo.open(session.metadata, BACKGROUND)
    with expect(SessionInUse):
        await repo.delete(session.metadata, BACKGROUND)
    await session.storage.commit([set_value(NOTE, "still mine")], BACKGROUND)
