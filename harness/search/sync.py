"""Brings an index up to date with a repository: pulls what is new, removes what is gone (§2.8).

Nothing is pushed: a session is read from the position that the index keeps, so a crash anywhere, a
lost hint or an index that starts empty beside years of sessions are all the same case.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from harness.context import Context
from harness.entries import Entry, entry_type
from harness.errors import HarnessError, SessionNotFound
from harness.search.labels import labels_of
from harness.search.service import (
    CursorMoved,
    Position,
    SearchBatch,
    SearchDocument,
    SearchTarget,
    StoreIdentity,
)
from harness.search.text import entry_text
from harness.storage.metadata import SessionMetadata

_log = logging.getLogger(__name__)

PAGE_ENTRIES = 2_000
_PAGE_CHARACTERS = 2_000_000
_ATTEMPTS = 5
_LISTED_AT_ONCE = 500


@dataclass(frozen=True, slots=True)
class SourceSession:
    """A session as a source lists it.

    `stamp` changes whenever its entries do, so that an unchanged session need not be read; None
    when the source cannot tell cheaply.
    """

    metadata: SessionMetadata
    stamp: str | None


@dataclass(frozen=True, slots=True)
class SourcePage:
    """The searchable text of some entries in order; `more` when there may be others after `last_seq`."""

    metadata: SessionMetadata
    documents: tuple[SearchDocument, ...]
    last_seq: int
    more: bool


class SearchSource(Protocol):
    """Where an index gets its content from. Reading disturbs no writer."""

    def sessions(self, context: Context) -> AsyncIterator[SourceSession]:
        """Every session."""
        ...

    async def find(self, session_id: str, context: Context) -> SourceSession:
        """One session; raises `SessionNotFound`."""
        ...

    async def read(self, session_id: str, after_seq: int, context: Context) -> SourcePage:
        """A bounded page of entries after a sequence number; raises `SessionNotFound`."""
        ...


@dataclass(slots=True)
class SyncReport:
    """What a synchronization did. `failures` says why sessions could not be brought up to date."""

    sessions: int = 0
    entries: int = 0
    removed: int = 0
    failures: dict[str, str] = field(default_factory=dict[str, str])


def document_of(entry: Entry) -> SearchDocument | None:
    """What is indexed of an entry; None when it has no text."""
    text = entry_text(entry)
    if not text:
        return None
    return SearchDocument(entry.id, entry.seq, entry_type(entry), entry.timestamp, text)


def page_of(
    metadata: SessionMetadata, entries: Iterable[Entry], after_seq: int, limit: int = PAGE_ENTRIES
) -> SourcePage:
    """A page of at most `limit` entries, taken from entries in order after `after_seq`."""
    documents: list[SearchDocument] = []
    last, characters = after_seq, 0
    for count, entry in enumerate(entries, start=1):
        last = entry.seq
        document = document_of(entry)
        if document is not None:
            documents.append(document)
            characters += len(document.text)
        if count == limit or characters >= _PAGE_CHARACTERS:
            return SourcePage(metadata, tuple(documents), last, more=True)
    return SourcePage(metadata, tuple(documents), last, more=False)


def store_of(metadata: SessionMetadata) -> StoreIdentity:
    """Which store this metadata belongs to."""
    return StoreIdentity(metadata.created_at, metadata.store_generation)


async def sync_all(
    source: SearchSource, target: SearchTarget, context: Context, *, reconcile: bool = True
) -> SyncReport:
    """Bring every session up to date, and with `reconcile` forget those that the source has not.

    An index that serves several sources must not be reconciled with one of them. A session that
    cannot be read is reported and does not hold up the others; a cancelled context ends it early.
    """
    report = SyncReport()
    listed: list[SourceSession] = []
    known: set[str] = set()
    async for session in source.sessions(context):
        known.add(session.metadata.id)
        listed.append(session)
        if len(listed) == _LISTED_AT_ONCE:
            await _sync_listed(source, target, listed, report, context)
            listed.clear()
        if context.cancelled:
            return report
    await _sync_listed(source, target, listed, report, context)
    if reconcile and not context.cancelled:
        await _reconcile(source, target, known, report, context)
    return report


async def sync_session(
    source: SearchSource, target: SearchTarget, session_id: str, context: Context
) -> int:
    """Bring one session up to date, or forget it when it is gone; returns how many entries were new.

    Raises what the source raises for a session that cannot be read, and `SearchError`.
    """
    try:
        session = await source.find(session_id, context)
        held = (await target.positions([session_id], context)).get(session_id)
        return await _catch_up(source, target, session, held, context)
    except SessionNotFound:
        # It may go at any step.
        await target.remove(session_id, context)
        return 0


async def _sync_listed(
    source: SearchSource,
    target: SearchTarget,
    listed: list[SourceSession],
    report: SyncReport,
    context: Context,
) -> None:
    positions = await target.positions([session.metadata.id for session in listed], context)
    for session in listed:
        if context.cancelled:
            return
        session_id = session.metadata.id
        held = positions.get(session_id)
        if held is not None and _is_current(session, held, target):
            continue
        try:
            report.entries += await _catch_up(source, target, session, held, context)
            report.sessions += 1
        except SessionNotFound:
            continue  # deleted since it was listed: reconciling takes it out
        except HarnessError as error:
            _log.warning("session %s is not indexed: %s", session_id, error)
            report.failures[session_id] = f"{type(error).__name__}: {error}"


def _is_current(session: SourceSession, held: Position, target: SearchTarget) -> bool:
    return (
        session.stamp is not None
        and held.stamp == session.stamp
        and held.store == store_of(session.metadata)
        and held.labels == labels_of(session.metadata, target.metadata_fields)
    )


async def _catch_up(
    source: SearchSource,
    target: SearchTarget,
    session: SourceSession,
    held: Position | None,
    context: Context,
) -> int:
    session_id = session.metadata.id
    for _ in range(_ATTEMPTS):
        try:
            return await _pull(source, target, session, held, context)
        except CursorMoved:
            # Another process indexed it, or its store was replaced, between two steps of ours.
            session = await source.find(session_id, context)
            held = (await target.positions([session_id], context)).get(session_id)
    raise CursorMoved(f"session {session_id} is being indexed by others; it was left to them")


async def _pull(
    source: SearchSource,
    target: SearchTarget,
    session: SourceSession,
    held: Position | None,
    context: Context,
) -> int:
    session_id, store = session.metadata.id, store_of(session.metadata)
    labels = labels_of(session.metadata, target.metadata_fields)
    replaces = None if held is None else held.store
    after = held.seq if held is not None and held.store == store else 0
    indexed, more = 0, True
    while more and not context.cancelled:
        page = await source.read(session_id, after, context)
        if store_of(page.metadata) != store:
            raise CursorMoved(f"session {session_id} has another store now")
        more = page.more
        # The stamp is older than the reading, so what it vouches for has been read.
        stamp = None if more else session.stamp
        if _says_nothing(page, held, store, labels, stamp):
            return 0
        await target.index_batch(
            SearchBatch(
                session_id=session_id,
                store=store,
                replaces=replaces,
                from_seq=after + 1,
                to_seq=page.last_seq,
                documents=page.documents,
                labels=labels,
                stamp=stamp,
            ),
            context,
        )
        replaces, after = store, page.last_seq
        indexed += len(page.documents)
    return indexed


def _says_nothing(
    page: SourcePage,
    held: Position | None,
    store: StoreIdentity,
    labels: tuple[str, ...],
    stamp: str | None,
) -> bool:
    """Whether the index would be the same afterwards."""
    if held is None or held.store != store or held.labels != labels:
        return False
    return page.last_seq <= held.seq and not page.more and stamp in (None, held.stamp)


async def _reconcile(
    source: SearchSource,
    target: SearchTarget,
    known: set[str],
    report: SyncReport,
    context: Context,
) -> None:
    after: str | None = None
    while page := await target.session_ids(after, _LISTED_AT_ONCE, context):
        after = page[-1]
        for session_id in page:
            if session_id in known:
                continue
            try:
                # Made since the listing, perhaps: ask before forgetting it.
                await source.find(session_id, context)
            except SessionNotFound:
                await target.remove(session_id, context)
                report.removed += 1
            except HarnessError as error:
                report.failures[session_id] = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0)
