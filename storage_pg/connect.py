"""How this package connects: autocommit, no state that a transaction-mode pooler would lose."""

from __future__ import annotations

import asyncio

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
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


def address(dsn: str, application: str) -> str:
    """The connection string with what every connection of ours says and wants."""
    return make_conninfo(dsn, application_name=application, **KEEPALIVE)


def sqlalchemy_url(dsn: str) -> str:
    """The same address for SQLAlchemy, which wants the driver's name in it."""
    scheme, separator, rest = dsn.partition("://")
    if not separator or scheme not in ("postgresql", "postgres", "postgresql+psycopg"):
        raise ValueError("a database URL begins with postgresql://")
    return f"postgresql+psycopg://{rest}"


async def connect(dsn: str, application: str = "laneway") -> AsyncConnection[TupleRow]:
    """One autocommit connection without server-side prepared statements.

    Cancelled in the middle, it leaves no socket behind.
    """
    attempt = asyncio.ensure_future(
        psycopg.AsyncConnection.connect(
            address(dsn, application), autocommit=True, prepare_threshold=None
        )
    )
    try:
        return await asyncio.shield(attempt)
    except asyncio.CancelledError:
        # The driver closes a half-made connection only when the last reference to its frames goes,
        # and whoever keeps a cancelled task keeps those. The server then waits a minute for the
        # rest of the login, and whatever wants an answer of every backend waits with it.
        attempt.cancel()
        await asyncio.wait([attempt])
        if not attempt.cancelled() and attempt.exception() is None:
            await attempt.result().close()
        del attempt
        raise


def open_pool(
    dsn: str, *, size: int = 8, application: str = "laneway"
) -> AsyncConnectionPool[AsyncConnection[TupleRow]]:
    """A pool of such connections; open it with `async with`, or `open()` and `close()`."""
    return AsyncConnectionPool(
        address(dsn, application),
        min_size=1,
        max_size=size,
        open=False,
        name=application,
        kwargs={"autocommit": True, "prepare_threshold": None},
    )
