"""The blocking core of the SQLite backend: one connection, its transactions and its queries (§1.7)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, assert_never

import msgspec

from harness.clock import Clock
from harness.codec import decode, encode_str
from harness.entries import Entry, EntryStructure
from harness.errors import SessionInUse, SessionNotFound, StorageCorrupt, StorageError
from harness.storage.address import Value, ValueList
from harness.storage.branch_index import BranchIndex
from harness.storage.metadata import SessionMetadata
from harness.storage.migrations import CURRENT_SCHEMA, Schema
from harness.storage.prepared import (
    Prepared,
    PreparedElement,
    PreparedEntry,
    PreparedUsage,
    PreparedValue,
)
from harness.storage.protocol import (
    BranchScan,
    CommitResult,
    EntryScan,
    ListElement,
    ListRead,
    StoredValue,
    UsageScan,
    page_limit,
)
from harness.storage.queries import load_queries
from harness.storage.rows import decode_entries, decode_json, entry_json
from harness.storage.sqlite_lease import WriterLease
from harness.storage.sqlite_migrate import migrate_sqlite
from harness.storage.writes import DeleteList, DeleteValue
from harness.usage import SessionStats, Usage, UsageRow, add_usage

T = TypeVar("T")

SQL = load_queries("harness.storage.sqlite_sql", "queries.sql")
Synchronous: TypeAlias = Literal["full", "normal"]

_MAX_SEQ = 2**63 - 1
_BUSY_SECONDS = 5.0
_LAST_CODE_POINT = 0x10FFFF
_FIRST_SURROGATE, _AFTER_SURROGATES = 0xD800, 0xE000
_SYNCHRONOUS = {"full": "PRAGMA synchronous = FULL", "normal": "PRAGMA synchronous = NORMAL"}

# Any: sqlite3 rows are tuples of whatever the columns hold.
Row: TypeAlias = tuple[Any, ...]


@contextmanager
def translated() -> Generator[None]:
    """Raise storage errors in place of the library's."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StorageCorrupt(f"the session refuses this write: {error}") from error
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "malformed" in text or "not a database" in text or "no such table" in text:
            raise StorageCorrupt(f"the session file is damaged: {text}") from error
        raise StorageError(f"SQLite: {text}") from error


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def connect(path: Path) -> sqlite3.Connection:
    """Open an existing session file; raises `SessionNotFound`."""
    if not path.is_file():
        raise SessionNotFound(str(path))
    # Transactions are opened explicitly; the connection stays on the thread that uses it.
    connection = sqlite3.connect(
        path,
        timeout=_BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=200,
    )
    connection.execute("PRAGMA foreign_keys = OFF")
    return connection


def read_metadata(connection: sqlite3.Connection) -> SessionMetadata:
    """The session's own row; raises `StorageCorrupt` when there is none."""
    row = connection.execute(SQL["read_session"]).fetchone()
    if row is None:
        raise StorageCorrupt("the file holds no session")
    return SessionMetadata(
        id=row[0],
        created_at=row[1],
        cwd=row[2],
        parent_session_id=row[3],
        legacy_parent_session_path=row[4],
        storage_version=row[5],
        store_generation=row[6],
        metadata=None if row[7] is None else decode(row[7], dict[str, Any]),
    )


class SqliteFile:
    """A session's file, opened for writing under a lease. Every method blocks."""

    def __init__(
        self,
        path: Path,
        clock: Clock,
        *,
        synchronous: Synchronous,
        lease_ttl_ms: int,
        schema: Schema = CURRENT_SCHEMA,
    ) -> None:
        self._clock = clock
        self._path = path
        self._lease_ttl_ms = lease_ttl_ms
        self._schema = schema
        with translated():
            while not self._claim(synchronous):
                pass  # a rewrite put another file in this place meanwhile
            self._branches = BranchIndex(self._db)

    def _claim(self, synchronous: Synchronous) -> bool:
        """Open the file and take its lease; False when the path names another file by now."""
        opened = _inode(self._path)
        self._db = connect(self._path)
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute(_SYNCHRONOUS[synchronous])
            self._lease = WriterLease(self._db, self._lease_ttl_ms)
            self._db.execute("BEGIN IMMEDIATE")
            if _inode(self._path) != opened:
                self._lease.forget()
                self._db.close()
                return False
            metadata = read_metadata(self._db)
            self._schema.pending(metadata.storage_version)
            self._lease.acquire(metadata.id, self._clock.now_ms())
            self._db.execute("COMMIT")
        except BaseException:
            self._db.close()
            raise
        try:
            version = migrate_sqlite(self._db, metadata.storage_version, self._schema)
            row = self._db.execute(SQL["read_totals"]).fetchone()
        except BaseException:
            self.close()
            raise
        self.metadata = msgspec.structs.replace(metadata, storage_version=version)
        # This object is the only writer, so what it wrote last need not be read again.
        self._next_seq: int = row[0]
        self._stats = SessionStats(message_count=row[1], usage=decode(row[2], Usage))
        return True

    # Writing

    def commit(self, writes: Sequence[Prepared]) -> CommitResult:
        """One transaction; nothing in the file or in this object changes when it raises."""
        now = self._clock.now_ms()
        first = self._next_seq
        last = first + len(writes)
        messages, usage = self._stats.message_count, self._stats.usage
        with self._transaction(now):
            for seq, write in enumerate(writes, start=first):
                self._apply(write, seq, now)
                if isinstance(write, PreparedEntry):
                    messages += write.type == "message"
                elif isinstance(write, PreparedUsage):
                    usage = add_usage(usage, write.usage)
            self._db.execute(SQL["write_totals"], (last, messages, encode_str(usage)))
        self._next_seq = last
        self._stats = SessionStats(message_count=messages, usage=usage)
        return CommitResult(first, tuple(range(first, last)), now)

    @contextmanager
    def _transaction(self, now_ms: int) -> Generator[None]:
        """A write transaction under the verified lease.

        IMMEDIATE, because every commit reads before it writes: a deferred transaction could find
        its snapshot stale at the first write, which no waiting repairs.
        """
        with translated():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                self._lease.verify(now_ms)
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _apply(self, write: Prepared, seq: int, now_ms: int) -> None:
        run = self._db.execute
        match write:
            case PreparedEntry():
                if run(SQL["usage_exists"], (write.id,)).fetchone() is not None:
                    raise StorageCorrupt(f"id {write.id} is written twice")
                parent = write.parent_id
                if parent is not None and run(SQL["entry_exists"], (parent,)).fetchone() is None:
                    raise StorageCorrupt(f"entry {write.id} names missing parent {parent}")
                run(
                    SQL["insert_entry"],
                    (write.id, parent, seq, write.type, write.custom_type, now_ms, write.payload),
                )
                self._branches.append(write.id, seq, write.type, parent)
            case PreparedUsage():
                if run(SQL["entry_exists"], (write.id,)).fetchone() is not None:
                    raise StorageCorrupt(f"id {write.id} is written twice")
                run(
                    SQL["insert_usage"],
                    (
                        write.id,
                        seq,
                        write.entry_id,
                        write.adjustment,
                        write.usage_json,
                        write.details,
                    ),
                )
            case PreparedValue(namespace=namespace, key=key, json=json):
                run(SQL["set_value"], (namespace, key, seq, json))
            case PreparedElement(namespace=namespace, key=key, json=json):
                run(SQL["append_list"], (namespace, key, seq, json))
            case DeleteValue(namespace=namespace, key=key):
                run(SQL["delete_value"], (namespace, key))
            case DeleteList(namespace=namespace, key=key):
                run(SQL["delete_list"], (namespace, key))
            case _:
                assert_never(write)

    def repair_branch_index(self) -> int:
        """Rebuild the branch index from the entries; returns how many it holds now."""
        with self._transaction(self._clock.now_ms()):
            return self._branches.repair()

    # Reading

    def get_entries(self, ids: Sequence[str]) -> dict[str, Entry]:
        rows = [self._db.execute(SQL["get_entry"], (entry_id,)).fetchone() for entry_id in set(ids)]
        return {entry.id: entry for entry in _entries([row for row in rows if row is not None])}

    def get_value(self, address: Value[T]) -> StoredValue[T] | None:
        row = self._db.execute(SQL["get_value"], (address.namespace, address.key)).fetchone()
        return None if row is None else StoredValue(address, decode(row[0], address.type), row[1])

    def scan_values(self, prefix: Value[T]) -> list[StoredValue[T]]:
        upper = after_prefix(prefix.key)
        if upper is None:
            rows = self._db.execute(SQL["scan_values_from"], (prefix.namespace, prefix.key))
        else:
            rows = self._db.execute(SQL["scan_values"], (prefix.namespace, prefix.key, upper))
        return [
            StoredValue(Value(prefix.type, prefix.namespace, key), decode(json, prefix.type), seq)
            for key, json, seq in rows.fetchall()
        ]

    def read_list(self, address: ValueList[T], read: ListRead) -> list[ListElement[T]]:
        ascending = read.order == "asc"
        bound = read.cursor if read.cursor is not None else (0 if ascending else _MAX_SEQ)
        rows = self._db.execute(
            SQL["read_list_asc" if ascending else "read_list_desc"],
            (address.namespace, address.key, bound, page_limit(read.limit)),
        )
        return [ListElement(seq, decode(json, address.type)) for seq, json in rows.fetchall()]

    def scan_branch(self, query: BranchScan) -> list[Entry]:
        return _entries(list(self._branches.scan(query, structure=False)))

    def scan_branch_structure(self, query: BranchScan) -> list[EntryStructure]:
        return [
            EntryStructure(
                seq=seq,
                timestamp=timestamp,
                id=id_,
                parent_id=parent,
                type=type_,
                custom_type=custom,
            )
            for seq, timestamp, id_, parent, type_, custom in self._branches.scan(
                query, structure=True
            )
        ]

    def scan_entries(self, query: EntryScan) -> list[Entry]:
        rows = self._db.execute(
            SQL["scan_entries_asc" if query.order == "asc" else "scan_entries_desc"],
            {
                "low": 0 if query.from_seq is None else query.from_seq,
                "high": _MAX_SEQ if query.to_seq is None else query.to_seq,
                "type": query.type,
                "custom_type": query.custom_type,
                "limit": -1 if query.limit is None else query.limit,
            },
        )
        return _entries(rows.fetchall())

    def scan_usage(self, query: UsageScan) -> list[UsageRow]:
        rows = self._db.execute(
            SQL["scan_usage_asc" if query.order == "asc" else "scan_usage_desc"],
            (
                0 if query.from_seq is None else query.from_seq,
                _MAX_SEQ if query.to_seq is None else query.to_seq,
                -1 if query.limit is None else query.limit,
            ),
        )
        return [usage_row(row) for row in rows.fetchall()]

    def get_stats(self) -> SessionStats:
        row = self._db.execute(SQL["read_totals"]).fetchone()
        return SessionStats(message_count=row[1], usage=decode(row[2], Usage))

    # Ending

    def renew_lease(self) -> None:
        """Keep the claim while nothing is written."""
        # It runs between jobs, where nobody could take an error; a lost claim shows at the next commit.
        with suppress(StorageError), translated():
            self._lease.renew(self._clock.now_ms())

    def close(self) -> None:
        """Release the lease and the file."""
        try:
            with translated():
                self._lease.release()
        finally:
            self._lease.forget()
            self._db.close()

    def retire(self, act: Callable[[], None]) -> None:
        """Replace or remove the file by `act`, with nobody else in it; then only `abandon` makes sense.

        Raises `SessionInUse` while a reader has the file open. The write-ahead log must be gone
        before: SQLite would apply it to whatever file has the name.
        """
        with translated():
            try:
                self._db.execute("PRAGMA journal_mode = DELETE")
                self._db.execute("BEGIN EXCLUSIVE")
            except sqlite3.OperationalError as error:
                if "locked" in str(error):
                    raise SessionInUse(self.metadata.id, "a reader") from error
                raise
            try:
                act()
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def abandon(self) -> None:
        """Let go of the file as a killed process would: nothing is released."""
        self._lease.forget()
        self._db.close()


def _entries(rows: Sequence[Row]) -> list[Entry]:
    return decode_entries([entry_json(*row) for row in rows])


def usage_row(row: Row) -> UsageRow:
    """A ledger row from its columns."""
    id_, seq, entry_id, adjustment, usage, details = row
    return UsageRow(
        id=id_,
        seq=seq,
        usage=decode(usage, Usage),
        adjustment=bool(adjustment),
        entry_id=msgspec.UNSET if entry_id is None else entry_id,
        details=msgspec.UNSET if details is None else decode_json(details),
    )


def after_prefix(prefix: str) -> str | None:
    """The first text, by code points, after everything that starts with `prefix`; None if there is none."""
    kept = prefix.rstrip(chr(_LAST_CODE_POINT))
    if not kept:
        return None
    following = ord(kept[-1]) + 1
    if following == _FIRST_SURROGATE:
        following = _AFTER_SURROGATES
    return kept[:-1] + chr(following)
