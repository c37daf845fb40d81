"""Fills a session from records, in one transaction of the caller's."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any, assert_never

import msgspec
import psycopg
from psycopg.rows import TupleRow
from psycopg.types.json import Jsonb

from harness.codec import decode, encode_str
from harness.entries import (
    BranchSummaryEntry,
    CompactionEntry,
    CustomEntry,
    Entry,
    MessageEntry,
    custom_type_of,
    entry_type,
    payload_of,
)
from harness.errors import InvalidArgument
from harness.operation.state import OperationMeta, OperationState
from harness.storage.metadata import SessionMetadata
from harness.storage.records import ElementRecord, Record, ValueRecord
from harness.storage.rows import payload_json
from harness.usage import ZERO_USAGE, UsageRow, add_usage
from storage_pg.derived import META, NAME, STATE, kind_of, listed_name
from storage_pg.due import PollSettings, due_instant, due_of
from storage_pg.queries import QUERIES
from storage_pg.sessions import SessionExists

_BATCH = 200
# Any: pyright cannot name a union as type[T]; the decoder takes it.
_STATE_TYPE: Any = OperationState


class Restoring:
    """Writes records under their own sequence numbers and times, then the session's totals."""

    def __init__(
        self,
        connection: psycopg.Connection[TupleRow],
        tenant_id: str,
        session_id: str,
        now_ms: int,
        polls: PollSettings,
    ) -> None:
        self._connection = connection
        self._who = (tenant_id, session_id)
        self._now = now_ms
        self._polls = polls
        self._waiting: dict[str, list[tuple[Any, ...]]] = {}
        self._entries: list[tuple[Any, ...]] = []
        self._count = 0
        self._next_seq = 1
        self._messages = 0
        self._usage = ZERO_USAGE
        self._name: str | None = None
        self._metas: dict[str, OperationMeta] = {}
        self._states: dict[str, OperationState] = {}

    def make(self, metadata: SessionMetadata, agent: str | None) -> None:
        """The session's row; raises `SessionExists`, and `InvalidArgument` for what this database
        cannot hold."""
        parent = metadata.parent_session_id
        try:
            self._connection.execute(
                QUERIES["restore_session"],
                {
                    "id": canonical(metadata.id),
                    "tenant": self._who[0],
                    "created_at": metadata.created_at,
                    "stamp": self._now,
                    "agent": agent,
                    "metadata": Jsonb(metadata.metadata or {}),
                    "cwd": metadata.cwd,
                    "parent": None if parent is None else canonical(parent),
                    "legacy_parent": metadata.legacy_parent_session_path,
                    "version": metadata.storage_version,
                    "generation": metadata.store_generation,
                    "usage": encode_str(ZERO_USAGE),
                },
            )
        except psycopg.errors.UniqueViolation as error:
            raise SessionExists(f"session {metadata.id} exists already") from error
        except (psycopg.errors.UntranslatableCharacter, UnicodeEncodeError) as error:
            raise InvalidArgument(
                "session metadata may contain neither NUL nor lone surrogates here"
            ) from error

    def fill(self, records: Iterable[Record], next_seq: int) -> None:
        """All records, in the order of their numbers, and what follows from them."""
        for record in records:
            self._take(record)
        self._flush()
        for operation, state in self._states.items():
            self._open(operation, state)
        self._connection.execute(
            QUERIES["restore_totals"],
            {
                "id": self._who[1],
                "next_seq": max(next_seq, self._next_seq),
                "messages": self._messages,
                "usage": encode_str(self._usage),
                "name": self._name,
                "stamp": self._now,
            },
        )

    def _take(self, record: Record) -> None:
        self._next_seq = record.seq + 1
        match record:
            case ValueRecord(seq=seq, namespace=namespace, key=key, json=text):
                self._note(record)
                self._add("restore_value", seq, namespace, key, text)
            case ElementRecord(seq=seq, namespace=namespace, key=key, json=text):
                self._add("restore_element", seq, namespace, key, text)
            case UsageRow():
                self._take_usage(record)
            case MessageEntry() | CompactionEntry() | BranchSummaryEntry() | CustomEntry():
                self._take_entry(record)
            case _:
                assert_never(record)

    def _take_usage(self, row: UsageRow) -> None:
        self._usage = add_usage(self._usage, row.usage)
        self._add(
            "restore_usage",
            canonical(row.id),
            row.seq,
            uuid.UUID(row.id).int >> 80,  # the time that its id carries
            None if row.entry_id is msgspec.UNSET else canonical(row.entry_id),
            row.adjustment,
            encode_str(row.usage),
            None if row.details is msgspec.UNSET else encode_str(row.details),
        )

    def _take_entry(self, entry: Entry) -> None:
        type_ = entry_type(entry)
        self._messages += type_ == "message"
        self._entries.append(
            (
                canonical(entry.id),
                None if entry.parent_id is None else canonical(entry.parent_id),
                entry.seq,
                entry.timestamp,
                type_,
                custom_type_of(entry),
                payload_json(payload_of(entry)),
            )
        )
        self._counted()

    def _note(self, record: ValueRecord) -> None:
        if record.namespace == NAME and not record.key:
            self._name = listed_name(decode(record.json, str))
        elif record.namespace == META:
            self._metas[record.key] = decode(record.json, OperationMeta)
        elif record.namespace == STATE:
            self._states[record.key] = decode(record.json, _STATE_TYPE)

    def _open(self, operation: str, state: OperationState) -> None:
        meta = self._metas.get(operation)
        if meta is None:
            raise InvalidArgument(f"operation {operation} has a state and no beginning")
        try:
            self._connection.execute(
                QUERIES["restore_operation"],
                {
                    "id": canonical(operation),
                    "tenant": self._who[0],
                    "session": self._who[1],
                    "lane": meta.lane,
                    "kind": kind_of(meta),
                    "accepted_at": meta.started_at,
                    "due_at": due_instant(due_of(state), self._now, self._polls),
                },
            )
        except psycopg.errors.UniqueViolation as error:
            raise InvalidArgument(f"operation {operation} is known here already") from error

    def _add(self, query: str, *columns: object) -> None:
        self._waiting.setdefault(query, []).append((*self._who, *columns))
        self._counted()

    def _counted(self) -> None:
        self._count += 1
        if self._count >= _BATCH:
            self._flush()

    def _flush(self) -> None:
        with self._connection.cursor() as cursor:
            if self._entries:
                columns = [list(column) for column in zip(*self._entries, strict=True)]
                cursor.execute(QUERIES["restore_entries"], (*self._who, *columns))
            for query, rows in self._waiting.items():
                cursor.executemany(QUERIES[query], rows)
        self._entries.clear()
        self._waiting.clear()
        self._count = 0


def canonical(found: str) -> str:
    """The id, which must be spelled as Postgres spells a UUID; raises `InvalidArgument`."""
    try:
        if str(uuid.UUID(found)) == found:
            return found
    except ValueError:
        pass
    raise InvalidArgument(f"Postgres keeps ids as UUIDs, in lower case; {found!r} is none")
