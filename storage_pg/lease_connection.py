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

# Of how many steps the wait for an answer is made up.
_STEPS = 10


class LeaseConnection:
    """Runs one statement at a time; `ended` is called once when the connection ends by itself.

    While it is idle a duplicate of its descriptor is watched, so that the server's closing it is
    noticed in the same instant. It is watched only then, because the driver watches the original
    while a statement runs. A connection that dies without a word is noticed by its silence: it is
    asked now and then, and ended when no answer comes within `patience` seconds.
    """

    def __init__(
        self,
        connection: AsyncConnection[TupleRow],
        ended: Callable[[str], None],
        patience: float,
    ) -> None:
        self._connection = connection
        self._ended = ended
        self._patience = patience
        self._line = asyncio.Lock()
        self._watched: int | None = None
        self._over = False
        self._asking = asyncio.get_running_loop().create_task(self._ask())

    @staticmethod
    async def open(dsn: str, ended: Callable[[str], None], patience: float) -> LeaseConnection:
        """Connect."""
        made = LeaseConnection(await connect(dsn, "laneway-lease"), ended, patience)
        made._watch()
        return made

    async def execute(self, query: str, parameters: Sequence[object] = ()) -> AsyncCursor[TupleRow]:
        """Run a named statement; raises `psycopg.Error`, after `ended` when that ended it all."""
        async with self._line:
            self._unwatch()
            silence = _Silence(self._patience, self.cut)
            try:
                return await self._connection.execute(QUERIES[query], parameters)
            except psycopg.Error as error:
                if self._broken:
                    self.cut(str(error).strip())
                    await self._connection.close()
                raise
            finally:
                silence.over()
                if self._over:
                    # It was cut when the answer was already here, so that nothing failed.
                    self._connection.pgconn.finish()
                self._watch()

    def cut(self, reason: str) -> None:
        """End the connection now, without waiting for anybody; `ended` is called."""
        if self._over:
            return
        self._over = True
        self._asking.cancel()
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
        self._asking.cancel()
        self._unwatch()
        await self._connection.close()

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(self._patience / 3)
            if not self._line.locked():
                with contextlib.suppress(psycopg.Error):
                    await self.execute("ping")

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


class _Silence:
    """Calls `cut` when nobody says `over` for so many seconds.

    It counts steps that the event loop really took: after a tool has blocked the loop for a while,
    an answer that came meanwhile is read before the wait for it can end.
    """

    def __init__(self, seconds: float, cut: Callable[[str], None]) -> None:
        self._seconds = seconds
        self._cut = cut
        self._left = _STEPS
        self._loop = asyncio.get_running_loop()
        self._step()

    def _step(self) -> None:
        if self._left == 0:
            self._cut(f"the database has not answered for {self._seconds:g} s")
            return
        self._left -= 1
        self._timer = self._loop.call_later(self._seconds / _STEPS, self._step)

    def over(self) -> None:
        """The answer is there."""
        self._timer.cancel()
