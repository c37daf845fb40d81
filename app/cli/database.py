"""How commands of operators reach the database and the fleet, and what they say when they cannot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

from app.cli.configuration import settings
from app.cli.output import fail

if TYPE_CHECKING:
    from storage_pg.storage import Pool
    from workers.commands import Command
    from workers.settings import Settings

T = TypeVar("T")


def with_pool(work: Callable[[Pool, Settings], Awaitable[T]]) -> T:
    """Run something on connections to the database; ends the command when the database refuses."""
    import psycopg

    from harness.errors import StorageError
    from storage_pg.connect import connect, open_pool

    found = settings(joins_fleet=False)

    async def run() -> T:
        # A pool waits and retries; one connection says at once what is wrong.
        await (await connect(found.database_url, "laneway-operator")).close()
        async with open_pool(found.database_url, size=2, application="laneway-operator") as pool:
            return await work(pool, found)

    try:
        return asyncio.run(run())
    except (psycopg.Error, StorageError, OSError) as error:
        fail(f"the database refused: {first_line(error)}")


def command_session(tenant_id: str, session_id: str, command: Command) -> bytes:
    """Have a command executed wherever the session is owned, as the API does; returns its result's
    JSON. Ends the command line's command when it is rejected or nobody can be reached."""
    import psycopg

    from harness.context import BACKGROUND
    from harness.errors import HarnessError, InvalidArgument
    from harness.result import Err
    from workers.host import SessionHost

    # A process of its own beside others on this machine: it takes a free port.
    found = settings(joins_fleet=True, internal_port=0, host_name="laneway (command line)")

    async def run() -> bytes:
        host = SessionHost(found, "api")
        try:
            await host.start()
            reply = await host.execute(tenant_id, session_id, command, BACKGROUND)
        finally:
            await host.close()
        if isinstance(reply, Err):
            fail(reply.error.message)
        return reply.value

    try:
        return asyncio.run(run())
    except (psycopg.Error, HarnessError, InvalidArgument, RuntimeError, OSError) as error:
        fail(first_line(error))


def first_line(error: Exception) -> str:
    """What an error says, on one line."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
