"""What one commit becomes on its way to the database: steps of the commit function."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import assert_never

from harness.codec import encode
from harness.entries import custom_type_of, payload_type
from harness.errors import InvalidArgument, StorageError
from harness.storage.writes import (
    AppendList,
    DeleteList,
    DeleteValue,
    InsertEntry,
    InsertUsage,
    SetValue,
    Write,
    is_auxiliary,
)
from harness.telemetry import NOOP_TELEMETRY, TelemetryContext
from harness.usage import SessionStats, add_usage
from storage_pg.derived import LAST_RESULT, META, STATE, derived_steps
from storage_pg.due import Due, PollSettings

_ENTRY, _USAGE, _SET, _UNSET, _APPEND, _CLEAR = 1, 2, 3, 4, 5, 6
_NOTED = 12

# A value set in this namespace, which no address can have, is no value of the session: it is noted under
# the idempotency key that its own key names.
NOTED = ""

# What an attachment reads: it comes with the claim and is kept here while the session is owned.
CONTROL_NAMESPACES = frozenset(
    {"pi.lane.leaf", "pi.lane.config", "pi.lane.state", LAST_RESULT, META, STATE}
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Which session a document is of, and under which claim."""

    tenant: bytes
    session: bytes
    fence: int

    @staticmethod
    def of(tenant_id: str, session_id: str, fence: int) -> Identity:
        """From the ids' text."""
        return Identity(uuid.UUID(tenant_id).bytes, uuid.UUID(session_id).bytes, fence)


@dataclass(frozen=True, slots=True)
class Known:
    """What a storage remembers of its session between commits, because it is the only writer."""

    stats: SessionStats
    due: dict[str, Due]
    next_seq: int


class Document:
    """One session's commit on its way, and its outcome: a first sequence number, None when it was
    fenced out, or an error."""

    __slots__ = (
        "_waiter",
        "codes",
        "due",
        "expected_seq",
        "identity",
        "known",
        "outcome",
        "relaxed",
        "size",
        "stamp",
        "stats",
        "texts",
        "traces",
        "writes",
    )

    def __init__(self, identity: Identity, known: Known, stamp: int, writes: int) -> None:
        self.identity = identity
        self.known = known
        self.expected_seq = known.next_seq
        self.stamp = stamp
        self.writes = writes
        self.relaxed = False
        self.stats = known.stats
        self.due: dict[str, Due | None] = {}
        self.traces: dict[str, str] = {}
        self.codes: list[int] = []
        # The usage totals come first and are known last.
        self.texts: list[bytes | None] = [None]
        self.size = 0
        self.outcome: tuple[int | None] | StorageError | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def messages(self) -> int | None:
        """The new message count, None when it stays."""
        count = self.stats.message_count
        return None if count == self.known.stats.message_count else count

    def follow(self, earlier: Sequence[Document]) -> None:
        """Take in what was to be committed before this, so that all of it is one commit. The earlier
        ones are auxiliary: they change no totals and move no operation."""
        codes: list[int] = []
        texts: list[bytes | None] = []
        for document in earlier:
            codes += document.codes
            texts += document.texts[1:]
            self.writes += document.writes
            self.size += document.size
        self.codes = codes + self.codes
        self.texts[1:1] = texts

    def conclude(self, outcome: tuple[int | None] | StorageError) -> None:
        """Set the outcome, once, and wake whoever waits for it."""
        if self.outcome is not None:
            return
        self.outcome = outcome
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def finished(self) -> None:
        """Return when there is an outcome. A cancellation is raised only then, so that what the
        caller believes and what happened agree."""
        cancelled: asyncio.CancelledError | None = None
        while self.outcome is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


def draft(
    writes: Sequence[Write],
    identity: Identity,
    known: Known,
    stamp: int,
    polls: PollSettings,
    telemetry: TelemetryContext = NOOP_TELEMETRY,
) -> Document:
    """Make the document of these writes, committed on behalf of `telemetry`. Nothing is changed;
    raises before anything is sent."""
    document = Document(identity, known, stamp, len(writes))
    document.relaxed = is_auxiliary(writes)
    try:
        for write in writes:
            _add(document, write)
        if not document.relaxed:
            _add_derived(document, writes, polls, telemetry)
    except UnicodeEncodeError as error:
        raise InvalidArgument(f"an address is not valid Unicode: {error.object!r}") from error
    if document.stats.usage is not known.stats.usage:
        document.texts[0] = encode(document.stats.usage)
    for text in document.texts:
        if text is not None:
            document.size += len(text)
            # JSON escapes it, so this is an address, an id or the name of a custom type.
            if b"\x00" in text:
                raise InvalidArgument("an address or the name of a custom type contains NUL")
    return document


def _add(document: Document, write: Write) -> None:
    codes, texts = document.codes, document.texts
    match write:
        case SetValue(namespace="", key=key, value=str() as made):
            codes.append(_NOTED)
            texts += (key.encode(), made.encode())
        case SetValue(namespace=namespace, key=key, value=value):
            codes.append(_SET)
            texts += (namespace.encode(), key.encode(), encode(value))
        case AppendList(namespace=namespace, key=key, value=value):
            codes.append(_APPEND)
            texts += (namespace.encode(), key.encode(), encode(value))
        case InsertEntry(entry=entry):
            payload = entry.payload
            kind = payload_type(payload)
            codes.append(_ENTRY)
            texts += (
                entry.id.encode(),
                _optional(entry.parent_id),
                encode(payload),
                kind.encode(),
                _optional(custom_type_of(payload)),
            )
            if kind == "message":
                document.stats = SessionStats(
                    message_count=document.stats.message_count + 1, usage=document.stats.usage
                )
        case InsertUsage(row=row):
            codes.append(_USAGE)
            texts += (
                row.id.encode(),
                _optional(row.entry_id),
                encode(row.usage),
                None if row.details is None else encode(row.details),
                b"t" if row.adjustment else None,
            )
            document.stats = SessionStats(
                message_count=document.stats.message_count,
                usage=add_usage(document.stats.usage, row.usage),
            )
        case DeleteValue(namespace=namespace, key=key):
            codes.append(_UNSET)
            texts += (namespace.encode(), key.encode())
        case DeleteList(namespace=namespace, key=key):
            codes.append(_CLEAR)
            texts += (namespace.encode(), key.encode())
        case _:
            assert_never(write)


def _add_derived(
    document: Document,
    writes: Sequence[Write],
    polls: PollSettings,
    telemetry: TelemetryContext,
) -> None:
    steps = derived_steps(
        writes,
        known_due=document.known.due,
        due=document.due,
        stamp=document.stamp,
        polls=polls,
        telemetry=telemetry,
        traces=document.traces,
    )
    for code, *texts in steps:
        document.codes.append(code)
        document.texts += [_optional(text) for text in texts]


def _optional(text: str | None) -> bytes | None:
    return None if text is None else text.encode()
