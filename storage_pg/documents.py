"""What one commit becomes on its way to the database: steps of the commit function.

Everything the database keeps beside the writes themselves (totals, the scheduler's row, the
receipt, the listed name) is derived here from the writes, so no caller can forget it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from harness.codec import encode
from harness.errors import InvalidArgument, OperationKind
from harness.operation.state import (
    CompactionIntent,
    CompactionLastResult,
    CompactionState,
    NavigationIntent,
    NavigationLastResult,
    NavigationState,
    OperationMeta,
    OperationState,
    RunIntent,
    RunLastResult,
    RunState,
)
from harness.storage.prepared import (
    Prepared,
    PreparedElement,
    PreparedEntry,
    PreparedUsage,
    PreparedValue,
    prepare,
)
from harness.storage.writes import DeleteList, DeleteValue, SetValue, Write, is_auxiliary
from harness.usage import SessionStats, add_usage
from storage_pg.due import Due, PollSettings, due_instant, due_of

_ENTRY, _USAGE, _SET, _UNSET, _APPEND, _CLEAR = 1, 2, 3, 4, 5, 6
_OPENED, _DUE, _FINISHED, _NAMED = 7, 8, 9, 10

LEAF = "pi.lane.leaf"
LAST_RESULT = "pi.lane.lastResult"
META = "pi.op.meta"
STATE = "pi.op.state"
NAME = "pi.session.name"

# What an attachment reads: it comes with the claim and is kept here while the session is owned.
CONTROL_NAMESPACES = frozenset({LEAF, "pi.lane.config", "pi.lane.state", LAST_RESULT, META, STATE})


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
        _derive(document, writes, known, due, polls)
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


def _derive(
    document: Document,
    writes: Sequence[Write],
    known: Known,
    due: dict[str, Due | None],
    polls: PollSettings,
) -> None:
    """The steps that keep the scheduler's row, the receipt and the listed name."""
    opened: dict[str, OperationMeta] = {}
    moved: dict[str, OperationState] = {}
    ended: dict[str, RunLastResult | CompactionLastResult | NavigationLastResult | None] = {}
    for write in writes:
        match write:
            case SetValue(namespace="pi.op.meta", value=OperationMeta() as meta):
                opened[meta.operation_id] = meta
            case SetValue(
                namespace="pi.op.state",
                key=operation,
                value=(RunState() | CompactionState() | NavigationState()) as state,
            ):
                moved[operation] = state
            case SetValue(
                namespace="pi.lane.lastResult",
                value=(RunLastResult() | CompactionLastResult() | NavigationLastResult()) as result,
            ):
                ended[result.operation_id] = result
            case DeleteValue(namespace="pi.op.state", key=operation):
                ended.setdefault(operation, None)
            case SetValue(namespace="pi.session.name", value=str() as name):
                document.step(_NAMED, name)
            case DeleteValue(namespace="pi.session.name"):
                document.step(_NAMED)
            case _:
                continue
    for operation, meta in opened.items():
        if operation in known.due:
            continue
        state = moved.get(operation)
        if state is None:
            continue
        due[operation] = due_of(state)
        instant = due_instant(due_of(state), document.stamp, polls)
        document.step(_OPENED, operation, meta.lane, _kind(meta), str(instant))
    for operation, state in moved.items():
        before = known.due.get(operation)
        after = due_of(state)
        if before is None or before == after or operation in ended:
            continue
        due[operation] = after
        document.step(_DUE, operation, str(due_instant(after, document.stamp, polls)))
    for operation, result in ended.items():
        if operation not in known.due and operation not in opened:
            continue
        due[operation] = None
        _finish(document, operation, result)


def _finish(
    document: Document,
    operation: str,
    result: RunLastResult | CompactionLastResult | NavigationLastResult | None,
) -> None:
    if result is None:
        document.step(_FINISHED, operation)
        return
    error = None if result.error is None else encode(result.error).decode()
    document.step(_FINISHED, operation, result.outcome, encode(result).decode(), error)


def _kind(meta: OperationMeta) -> OperationKind:
    match meta.intent:
        case RunIntent():
            return "run"
        case CompactionIntent():
            return "compaction"
        case NavigationIntent():
            return "navigation"
        case _:
            assert_never(meta.intent)
