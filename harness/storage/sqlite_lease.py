"""The fenced writer lease in a session's SQLite file: who may write, until when (§1.7)."""

from __future__ import annotations

import sqlite3

from harness.errors import LeaseLost, SessionInUse
from harness.storage.owner import (
    describe_owner,
    forget_owner,
    is_certainly_dead,
    new_owner_id,
)
from harness.storage.queries import load_queries

_SQL = load_queries("harness.storage.sqlite_sql", "queries.sql")


class WriterLease:
    """One claim on one file. All methods run inside a transaction of the caller's, or open one."""

    def __init__(self, connection: sqlite3.Connection, ttl_ms: int) -> None:
        self._connection = connection
        self._ttl_ms = ttl_ms
        self._owner = new_owner_id()
        self._fence = 0
        self._renew_at = 0
        self._lost = False

    @property
    def fence(self) -> int:
        """The number of this claim; it grows with every change of hands."""
        return self._fence

    def acquire(self, session_id: str, now_ms: int) -> None:
        """Take the lease, inside an open write transaction.

        Raises `SessionInUse` while another claim is unexpired, unless its process is known to be
        dead: then waiting for the expiry would protect nobody.
        """
        row = self._connection.execute(_SQL["read_lease"]).fetchone()
        fence = 0
        if row is not None:
            owner, fence, expires_at = row
            if expires_at > now_ms and not is_certainly_dead(owner):
                forget_owner(self._owner)
                raise SessionInUse(session_id, describe_owner(owner))
            self._connection.execute(_SQL["clear_lease"])
        self._fence = fence + 1
        self._connection.execute(
            _SQL["take_lease"], (self._owner, self._fence, now_ms + self._ttl_ms)
        )
        self._renew_at = now_ms + self._ttl_ms // 3

    def verify(self, now_ms: int) -> None:
        """Raise `LeaseLost` unless the claim stands; renew it when a third of its time is over.

        Runs inside the write transaction of a commit, so that no other owner can come between the
        check and the writes.
        """
        if self._lost:
            raise LeaseLost
        if now_ms >= self._renew_at:
            renewed = self._connection.execute(
                _SQL["renew_lease"], (now_ms + self._ttl_ms, self._owner, self._fence)
            )
            if renewed.rowcount == 1:
                self._renew_at = now_ms + self._ttl_ms // 3
                return
        else:
            row = self._connection.execute(_SQL["read_lease"]).fetchone()
            if row is not None and row[0] == self._owner and row[1] == self._fence:
                return
        self._lost = True
        raise LeaseLost

    def renew(self, now_ms: int) -> None:
        """Renew outside a commit, in a transaction of its own; a lost claim stays lost."""
        if self._lost or now_ms < self._renew_at:
            return
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self.verify(now_ms)
        except LeaseLost:
            self._connection.execute("ROLLBACK")
            return
        self._connection.execute("COMMIT")

    def release(self) -> None:
        """Give the claim up, if it still stands, so that the next opener need not wait."""
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute(_SQL["release_lease"], (self._owner, self._fence))
        self._connection.execute("COMMIT")
        forget_owner(self._owner)

    def forget(self) -> None:
        """Stop acting under this claim without touching the file."""
        forget_owner(self._owner)
