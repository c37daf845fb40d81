"""The one connection whose advisory locks are a host's leases, and hearing of its end at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence

import psycopg
from psycopg import AsyncConnection, AsyncCursor
from psycopg.pq import ConnStatus
from psycopg.rows import TupleRow

from storage_pg.connect import connect
from storage_pg.queries import QUERIES


class LeaseConnection:
    """Runs one statement at a time; `ended` is called once when the connection ends by itself.

    While it is idle a duplicate of its descriptor is watched, so that the server's closing it is
    noticed in the same instant. It is watched only then, because the driver watches the original
    while a statement runs.
    """

    def __init__(self, connection: AsyncConnection[TupleRow], ended: Callable[[str], None]) -> None:
        self._connection = connection
        self._ended = ended
        self._line = asyncio.Lock()
        self._watched: int | None = None
        self._over = False

    @staticmethod
    async def open(dsn: str, ended: Callable[[str], None]) -> LeaseConnection:
        """Connect."""
        made = LeaseConnection(await connect(dsn, "laneway-lease"), ended)
        made._watch()
        return made

    async def execute(self, query: str, parameters: Sequence[object] = ()) -> AsyncCursor[TupleRow]:
        """Run a named statement; raises `psycopg.Error`, after `ended` when that ended it all."""
        async with self._line:
            self._unwatch()
            try:
                return await self._connection.execute(QUERIES[query], parameters)
            except psycopg.Error as error:
                if self._broken:
                    self.cut(str(error).strip())
                    await self._connection.close()
                raise
            finally:
                self._watch()

    def cut(self, reason: str) -> None:
        """End the connection now, without waiting for anybody; `ended` is called."""
        if self._over:
            return
        self._over = True
        self._unwatch()
        # Wakes a statement that is under way, which then closes the connection itself.
        with (
            contextlib.suppress(OSError, psycopg.Error),
            socket.socket(fileno=os.dup(self._connection.fileno())) as wire,
        ):
            wire.shutdown(socket.SHUT_RDWR)
        if not self._line.locked():
            self._connection.pgconn.finish()
        self._ended(reason)

    async def close(self) -> None:
        """Close it in order; `ended` is not called."""
        self._over = True
        self._unwatch()
        await self._connection.close()

    @property
    def _broken(self) -> bool:
        return self._connection.closed or self._connection.pgconn.status == ConnStatus.BAD

    def _watch(self) -> None:
        if self._over or self._broken:
            return
        self._watched = os.dup(self._connection.fileno())
        asyncio.get_running_loop().add_reader(self._watched, self._readable)

    def _unwatch(self) -> None:
        watched, self._watched = self._watched, None
        if watched is not None:
            asyncio.get_running_loop().remove_reader(watched)
            os.close(watched)

    def _readable(self) -> None:
        try:
            self._connection.pgconn.consume_input()
        except psycopg.OperationalError as error:
            self.cut(str(error).strip())
            return
        if self._broken:
            self.cut("the server closed the lease connection")
