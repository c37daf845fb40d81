"""One connection for commits, driven by callbacks: the shortest way from a commit to its answer.

A commit is the most frequent thing a session does, and the driver's cursors, adaptation and waiting
cost as much time as the commit itself. This uses libpq as the driver wraps it: send, and hear of
the answer when the socket is readable. The reader stays registered, so an end of the connection is
noticed while it is idle, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import psycopg
from psycopg import AsyncConnection, pq
from psycopg.rows import TupleRow

from storage_pg import arrays
from storage_pg.connect import connect
from storage_pg.queries import QUERIES

_OIDS = [arrays.UUID_ARRAY, arrays.BIGINT_ARRAY, arrays.SMALLINT_ARRAY, arrays.TEXT_ARRAY]
_BINARY = [pq.Format.BINARY] * len(_OIDS)
_STATEMENT = b"laneway_commit"


class Refused(Exception):
    """The server refused a statement and lives on; nothing of it was applied."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(f"{message} ({sqlstate})")
        self.sqlstate = sqlstate
        self.message = message


class ConnectionLost(Exception):
    """The connection ended; what was under way may or may not have been applied."""


Answer = bytes | Refused | ConnectionLost


class Wire:
    """At most one call is under way; `answered` hears of its end, or of the connection's."""

    def __init__(
        self,
        connection: AsyncConnection[TupleRow],
        prepared: bool,
        answered: Callable[[Answer], None],
    ) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._prepared = prepared
        self._answered = answered
        self._loop = asyncio.get_running_loop()
        self._fd = connection.fileno()
        self._results: list[pq.abc.PGresult] = []
        self._writing = False
        self.closed = False
        self._loop.add_reader(self._fd, self._readable)

    @staticmethod
    async def open(dsn: str, answered: Callable[[Answer], None]) -> Wire:
        """Connect. The statement is prepared only where the server process stays the same: a
        transaction-mode pooler would lose it."""
        connection = await connect(dsn, "laneway-commit")
        try:
            row = await (await connection.execute(QUERIES["backend_pid"])).fetchone()
            prepared = row is not None and row[0] == connection.info.backend_pid
            if prepared:
                await connection.execute(QUERIES["prepare_commit"])
        except BaseException:
            await connection.close()
            raise
        return Wire(connection, prepared, answered)

    def send(self, values: list[bytes]) -> None:
        """Start a call with the commit function's four arguments."""
        try:
            if self._prepared:
                self._pgconn.send_query_prepared(_STATEMENT, values, _BINARY, result_format=1)
            else:
                self._pgconn.send_query_params(
                    QUERIES["commit_batch"].encode(), values, _OIDS, _BINARY, result_format=1
                )
            self._flush()
        except psycopg.OperationalError as error:
            # Not from within: the caller has not yet noted that a call is under way.
            self._loop.call_soon(self._lose, str(error))

    async def close(self) -> None:
        """Close the connection; `answered` is not called any more."""
        if not self.closed:
            self.closed = True
            self._forget()
        await self._connection.close()

    def _flush(self) -> None:
        # A large commit does not fit the socket's buffer: the rest goes when there is room.
        unsent = self._pgconn.flush() != 0
        if unsent and not self._writing:
            self._loop.add_writer(self._fd, self._writable)
        elif self._writing and not unsent:
            self._loop.remove_writer(self._fd)
        self._writing = unsent

    def _writable(self) -> None:
        try:
            self._flush()
        except psycopg.OperationalError as error:
            self._lose(str(error))

    def _readable(self) -> None:
        pgconn = self._pgconn
        try:
            pgconn.consume_input()
        except psycopg.OperationalError as error:
            self._lose(str(error))
            return
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                break
            self._results.append(result)
        else:
            return
        if pgconn.status == pq.ConnStatus.BAD:
            self._lose("the server closed the connection")
            return
        results, self._results = self._results, []
        if results:
            self._answered(_meaning(results[-1]))

    def _lose(self, reason: str) -> None:
        if self.closed:
            return
        self.closed = True
        self._forget()
        self._pgconn.finish()
        self._answered(ConnectionLost(reason.strip()))

    def _forget(self) -> None:
        self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
            self._writing = False


def _meaning(result: pq.abc.PGresult) -> Answer:
    if result.status == pq.ExecStatus.TUPLES_OK:
        value = result.get_value(0, 0)
        return b"" if value is None else value
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"XX000"
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
    return Refused(state.decode(), message.decode(errors="replace"))
