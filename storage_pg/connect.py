"""How this package connects: autocommit, no state that a transaction-mode pooler would lose."""

from __future__ import annotations

import psycopg
from psycopg import AsyncConnection
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool

# A dead network is noticed in seconds, not after the operating system's two hours.
KEEPALIVE: dict[str, int] = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "connect_timeout": 10,
}


async def connect(dsn: str, application: str = "laneway") -> AsyncConnection[TupleRow]:
    """One autocommit connection without server-side prepared statements."""
    return await psycopg.AsyncConnection.connect(
        dsn,
        autocommit=True,
        prepare_threshold=None,
        application_name=application,
        **KEEPALIVE,
    )


def open_pool(
    dsn: str, *, size: int = 8, application: str = "laneway"
) -> AsyncConnectionPool[AsyncConnection[TupleRow]]:
    """A pool of such connections; open it with `async with`, or `open()` and `close()`."""
    return AsyncConnectionPool(
        dsn,
        min_size=1,
        max_size=size,
        open=False,
        name=application,
        kwargs={
            "autocommit": True,
            "prepare_threshold": None,
            "application_name": application,
            **KEEPALIVE,
        },
    )
