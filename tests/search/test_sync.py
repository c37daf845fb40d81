"""Catching up: from empty, after changes, after crashes, with several at once."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest

from harness.clock import SystemClock
from harness.context import BACKGROUND
from harness.errors import SessionNotFound
from harness.operation.events import EntryAdded
from harness.search.notify import SearchNotifier
from harness.search.service import CursorMoved, SearchBatch, SearchError
from harness.search.sync import SourcePage, sync_all, sync_session
from harness.storage.metadata import SessionMetadata
from tests.search.places import Place, sync
from tests.search.support import found, say, sessions_for


class Crash(Exception):
    """The process died."""


class Flaky:
    """An index whose process dies before or after some batch."""

    def __init__(self, place: Place, at: int, *, after: bool) -> None:
        self._index = place.index
        self._left = at
        self._after = after
        self.metadata_fields = place.index.metadata_fields
        self.positions = place.index.positions
        self.session_ids = place.index.session_ids
        self.remove = place.index.remove

    async def index_batch(self, batch: SearchBatch, context: object) -> None:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise Crash
        await self._index.index_batch(batch, BACKGROUND)
        if self._left < 0:
            raise Crash


class Paged:
    """A source whose pages are small, so that tests meet many of them."""

    def __init__(self, place: Place, size: int) -> None:
        self._source = place.source
        self._size = size
        self.sessions = place.source.sessions
        self.find = place.source.find

    async def read(self, session_id: str, after_seq: int, context: object) -> SourcePage:
        page = await self._source.read(session_id, after_seq, BACKGROUND)
        if len(page.documents) <= self._size:
            return page
        kept = page.documents[: self._size]
        return SourcePage(page.metadata, kept, kept[-1].seq, more=True)


async def test_an_empty_index_catches_up_with_what_is_there(place: Place) -> None:
    sessions = [await place.new() for _ in range(3)]
    entries = [await say(session, "auth one", "auth two") for session in sessions]
    await sessions[0].close(BACKGROUND)  # the others are open, and being written to
    report = await sync(place)
    assert (report.sessions, report.entries, report.removed) == (3, 6, 0)
    assert await found(place.index, "auth") == {entry for some in entries for entry in some}
    report = await sync(place)
    assert report.entries == 0
    more = await say(sessions[1], "auth three")
    assert (await sync(place)).entries == 1
    assert set(more) < await found(place.index, "auth")
    position = (await place.index.positions([sessions[1].id], BACKGROUND))[sessions[1].id]
    stored = (await sessions[1].storage.get_entries(more, BACKGROUND))[more[0]]
    assert position.seq == stored.seq


async def test_a_crash_between_batches_leads_to_the_same_index(place: Place) -> None:
    session = await place.new()
    entries = await say(session, *(f"auth number {n}" for n in range(7)))
    paged = Paged(place, 2)
    for at in range(5):
        for after in (False, True):
            await place.index.remove(session.id, BACKGROUND)
            with pytest.raises(Crash):
                await sync_session(
                    paged, Flaky(place, min(at, 3), after=after), session.id, BACKGROUND
                )
            await sync_session(paged, place.index, session.id, BACKGROUND)
            assert await found(place.index, "auth") == set(entries)
            hits = await sessions_for(place.index, "auth")
            assert [hit.matches for hit in hits] == [len(entries)]


async def test_a_batch_can_be_repeated_and_never_leaves_a_gap(place: Place) -> None:
    session = await place.new()
    await say(session, *(f"auth number {n}" for n in range(4)))
    batches: list[SearchBatch] = []

    class Recorder(Flaky):
        async def index_batch(self, batch: SearchBatch, context: object) -> None:
            batches.append(batch)
            await place.index.index_batch(batch, BACKGROUND)

    await sync_session(Paged(place, 1), Recorder(place, 0, after=False), session.id, BACKGROUND)
    assert len(batches) >= 4
    before = await place.index.positions([session.id], BACKGROUND)
    for batch in (*batches[1:], batches[-1]):
        await place.index.index_batch(batch, BACKGROUND)
    after = await place.index.positions([session.id], BACKGROUND)
    assert after[session.id].seq == before[session.id].seq
    assert (await sessions_for(place.index, "auth"))[0].matches == 4
    last = batches[-1]
    beyond = dataclasses.replace(last, from_seq=last.to_seq + 2, to_seq=last.to_seq + 3)
    with pytest.raises(CursorMoved):
        await place.index.index_batch(beyond, BACKGROUND)
    # Somebody removed it meanwhile: what follows a missing beginning is refused.
    await place.index.remove(session.id, BACKGROUND)
    with pytest.raises(CursorMoved):
        await place.index.index_batch(last, BACKGROUND)
    assert await found(place.index, "auth") == set()


async def test_deleted_sessions_leave_the_index(place: Place) -> None:
    gone, kept = await place.new(), await place.new()
    await say(gone, "auth gone")
    await say(kept, "auth kept")
    await sync(place)
    await place.delete(gone)
    await sync(place)
    assert [hit.session_id for hit in await sessions_for(place.index, "auth")] == [kept.id]
    assert await place.index.positions([gone.id], BACKGROUND) == {}
    assert await place.index.session_ids(None, 10, BACKGROUND) == [kept.id]
    assert await place.index.session_ids(kept.id, 10, BACKGROUND) == []
    # One session alone notices as well.
    await place.delete(kept)
    assert await sync_session(place.source, place.index, kept.id, BACKGROUND) == 0
    assert await place.index.session_ids(None, 10, BACKGROUND) == []
    await place.index.remove(kept.id, BACKGROUND)
    await place.index.remove("no-such-session", BACKGROUND)


async def test_a_session_made_while_others_are_listed_is_not_forgotten(place: Place) -> None:
    session = await place.new()
    await say(session, "auth")
    await sync(place)

    class Blind:
        """Listed before the session was made."""

        find = place.source.find
        read = place.source.read

        async def sessions(self, context: object):
            return
            yield

    report = await sync_all(Blind(), place.index, BACKGROUND)
    assert report.removed == 0
    assert len(await sessions_for(place.index, "auth")) == 1


async def test_a_rewrite_replaces_what_was_indexed(place: Place) -> None:
    session = await place.new()
    first, secret, last = await say(session, "auth first", "auth secret", "auth last")
    await sync(place)
    stale = await place.index.positions([session.id], BACKGROUND)
    await place.rewrite(session, secret)
    await sync(place)
    assert await found(place.index, "secret") == set()
    assert await found(place.index, "auth") == {first, last}
    # An indexer that still reads the old store is refused.
    old = stale[session.id]
    with pytest.raises(CursorMoved):
        await place.index.index_batch(
            SearchBatch(session.id, old.store, old.store, 1, 3, (), old.labels, None), BACKGROUND
        )


async def test_several_indexers_do_no_harm_to_each_other(place: Place) -> None:
    sessions = [await place.new() for _ in range(4)]
    entries = [await say(session, *(f"auth {n}" for n in range(6))) for session in sessions]
    other = await place.reindexed(place.index.metadata_fields)
    paged = Paged(place, 2)
    reports = await asyncio.gather(
        *(sync_all(paged, target, BACKGROUND) for target in (place.index, other) * 3)
    )
    assert all(report.failures == {} for report in reports)
    assert await found(other, "auth") == {entry for some in entries for entry in some}
    assert [hit.matches for hit in await sessions_for(place.index, "auth")] == [6] * 4


async def test_pokes_and_sweeps_lead_to_the_same_index(place: Place) -> None:
    session = await place.new()
    notifier = SearchNotifier(place.source, place.index, SystemClock(), delay=0.01)
    heard = notifier.listener(session.id)
    entries: list[str] = []
    for n in range(5):
        entries += await say(session, f"auth {n}")
        stored = (await session.storage.get_entries(entries, BACKGROUND))[entries[-1]]
        heard(EntryAdded(lane="main", entry=stored), BACKGROUND)
    await notifier.settled()
    assert await found(place.index, "auth") == set(entries)
    report = await sync(place)
    assert report.entries == 0
    await place.delete(session)
    notifier.poke(session.id)
    await notifier.settled()
    assert await found(place.index, "auth") == set()
    await notifier.close()
    notifier.poke(session.id)
    await notifier.settled()


async def test_a_poke_is_one_pull_and_its_failure_harms_nobody(place: Place) -> None:
    session = await place.new()
    await say(session, "auth")
    pulls: list[str] = []

    class Broken:
        sessions = place.source.sessions
        read = place.source.read

        async def find(self, session_id: str, context: object):
            pulls.append(session_id)
            raise SearchError("nobody home") if len(pulls) > 1 else Crash

    notifier = SearchNotifier(Broken(), place.index, SystemClock(), delay=0.01)
    for _ in range(50):
        notifier.poke(session.id)
    await notifier.settled()
    assert pulls == [session.id]
    notifier.poke(session.id)
    await notifier.settled()
    assert pulls == [session.id] * 2
    await notifier.close()


async def test_one_unreadable_session_does_not_hold_up_the_others(place: Place) -> None:
    good, bad = await place.new(), await place.new()
    await say(good, "auth good")
    await say(bad, "auth bad")

    class Partly(Paged):
        async def read(self, session_id: str, after_seq: int, context: object) -> SourcePage:
            if session_id == bad.id:
                raise SearchError("unreadable")
            return await super().read(session_id, after_seq, context)

    report = await sync_all(Partly(place, 10), place.index, BACKGROUND)
    assert report.failures == {bad.id: "SearchError: unreadable"}
    assert [hit.session_id for hit in await sessions_for(place.index, "auth")] == [good.id]


async def test_a_store_that_changes_while_it_is_read_is_begun_anew(place: Place) -> None:
    session = await place.new()
    entries = await say(session, *(f"auth {n}" for n in range(6)))

    class Shifting(Paged):
        reads = 0

        async def read(self, session_id: str, after_seq: int, context: object) -> SourcePage:
            page = await super().read(session_id, after_seq, context)
            self.reads += 1
            if self.reads == 2:
                other = SessionMetadata(
                    id=session_id, created_at=page.metadata.created_at, store_generation=9
                )
                return dataclasses.replace(page, metadata=other)
            return page

    source = Shifting(place, 2)
    await sync_session(source, place.index, session.id, BACKGROUND)
    assert source.reads > 3
    assert await found(place.index, "auth") == set(entries)


async def test_a_session_that_goes_while_it_is_read_is_forgotten(place: Place) -> None:
    session = await place.new()
    await say(session, *(f"auth {n}" for n in range(6)))

    class Vanishing(Paged):
        reads = 0

        async def read(self, session_id: str, after_seq: int, context: object) -> SourcePage:
            page = await super().read(session_id, after_seq, context)
            self.reads += 1
            if self.reads == 2:
                await place.delete(session)
                raise SessionNotFound(session_id)
            return page

    assert await sync_session(Vanishing(place, 2), place.index, session.id, BACKGROUND) == 0
    assert await found(place.index, "auth") == set()
    assert await place.index.positions([session.id], BACKGROUND) == {}
