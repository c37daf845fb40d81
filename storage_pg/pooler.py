"""Finds out whether a connection string leads through a transaction-mode pooler."""

from __future__ import annotations

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from storage_pg.connect import connect
from storage_pg.queries import QUERIES


class PoolerOnDirectUrl(RuntimeError):
    """LANEWAY_DIRECT_DATABASE_URL leads through a transaction-mode pooler. Leases need a connection
    that stays one server process: give the database's own address, or use session mode."""

    def __init__(self) -> None:
        super().__init__(PoolerOnDirectUrl.__doc__)


async def refuse_pooler(dsn: str) -> None:
    """Raise `PoolerOnDirectUrl` when one connection of ours is served by changing server processes.

    The server process that a connection was greeted by must be the one that answers. A pooler in
    session mode fails that too, and is fine: so the process must also stay the same while another
    connection of ours is in a transaction.
    """
    async with await connect(dsn, "laneway-check") as first:
        before = await _pid(first)
        if before == first.info.backend_pid:
            return
        async with await connect(dsn, "laneway-check") as second, second.transaction():
            # A pooler hands the idle server process of the first to this transaction.
            taken = await _pid(second)
            after = await _pid(first)
            if taken == before or after != before:
                raise PoolerOnDirectUrl


async def _pid(connection: AsyncConnection[TupleRow]) -> int:
    row = await (await connection.execute(QUERIES["backend_pid"])).fetchone()
    assert row is not None
    return int(row[0])
