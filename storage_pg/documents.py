"""What one commit becomes on its way to the database: steps of the commit function."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from harness.codec import encode
from harness.errors import InvalidArgument
from harness.storage.prepared import (
    Prepared,
    PreparedElement,
    PreparedEntry,
    PreparedUsage,
    PreparedValue,
    prepare,
)
from harness.storage.writes import DeleteList, DeleteValue, Write, is_auxiliary
from harness.usage import SessionStats, add_usage
from storage_pg.derived import LAST_RESULT, META, STATE, derived_steps
from storage_pg.due import Due, PollSettings

_ENTRY, _USAGE, _SET, _UNSET, _APPEND, _CLEAR = 1, 2, 3, 4, 5, 6

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


@dataclass(slots=True)
class Document:
    """One session's commit: columns of steps, as the commit function takes them."""

    identity: Identity
    stamp: int
    writes: int
    relaxed: bool
    expected_seq: int
    answer: asyncio.Future[int | None]
    messages: int | None = None
    usage: bytes | None = None
    size: int = 0
    code: list[int] = field(default_factory=list[int])
    a: list[bytes | None] = field(default_factory=list["bytes | None"])
    b: list[bytes | None] = field(default_factory=list["bytes | None"])
    c: list[bytes | None] = field(default_factory=list["bytes | None"])
    d: list[bytes | None] = field(default_factory=list["bytes | None"])
    e: list[bytes | None] = field(default_factory=list["bytes | None"])

    def step(
        self,
        code: int,
        a: str | None = None,
        b: str | None = None,
        c: str | None = None,
        d: str | None = None,
        e: str | None = None,
    ) -> None:
        """Append one step; raises `InvalidArgument` for a name that is no valid Unicode."""
        self.code.append(code)
        for column, text in ((self.a, a), (self.b, b), (self.c, c), (self.d, d), (self.e, e)):
            if text is None:
                column.append(None)
                continue
            try:
                encoded = text.encode()
            except UnicodeEncodeError as error:
                raise InvalidArgument(f"not valid Unicode: {text!r}") from error
            self.size += len(encoded)
            column.append(encoded)


@dataclass(frozen=True, slots=True)
class Known:
    """What a storage remembers of its session between commits, because it is the only writer."""

    stats: SessionStats
    due: dict[str, Due]
    next_seq: int


@dataclass(frozen=True, slots=True)
class Drafted:
    """A document and what the storage will know once it is committed."""

    document: Document
    stats: SessionStats
    due: dict[str, Due | None]


def draft(
    writes: Sequence[Write], identity: Identity, known: Known, stamp: int, polls: PollSettings
) -> Drafted:
    """Make the document of these writes. Nothing is changed; raises before anything is sent."""
    document = Document(
        identity=identity,
        stamp=stamp,
        writes=len(writes),
        relaxed=is_auxiliary(writes),
        expected_seq=known.next_seq,
        answer=asyncio.get_running_loop().create_future(),
    )
    stats = known.stats
    for prepared in prepare(writes):
        stats = _add(document, prepared, stats)
    if stats is not known.stats:
        document.messages = stats.message_count
        if stats.usage is not known.stats.usage:
            document.usage = encode(stats.usage)
    due: dict[str, Due | None] = {}
    if not document.relaxed:
        for step in derived_steps(writes, known_due=known.due, due=due, stamp=stamp, polls=polls):
            document.step(*step)
    return Drafted(document, stats, due)


def _add(document: Document, prepared: Prepared, stats: SessionStats) -> SessionStats:
    match prepared:
        case PreparedEntry():
            document.step(
                _ENTRY,
                prepared.id,
                prepared.parent_id,
                prepared.payload,
                prepared.type,
                prepared.custom_type,
            )
            if prepared.type == "message":
                return SessionStats(message_count=stats.message_count + 1, usage=stats.usage)
        case PreparedUsage():
            document.step(
                _USAGE,
                prepared.id,
                prepared.entry_id,
                prepared.usage_json,
                prepared.details,
                "t" if prepared.adjustment else None,
            )
            return SessionStats(
                message_count=stats.message_count, usage=add_usage(stats.usage, prepared.usage)
            )
        case PreparedValue(namespace=namespace, key=key, json=json):
            document.step(_SET, namespace, key, json)
        case PreparedElement(namespace=namespace, key=key, json=json):
            document.step(_APPEND, namespace, key, json)
        case DeleteValue(namespace=namespace, key=key):
            document.step(_UNSET, namespace, key)
        case DeleteList(namespace=namespace, key=key):
            document.step(_CLEAR, namespace, key)
        case _:
            assert_never(prepared)
    return stats
