"""Commands on hosts: who lives, who owns what, and the order to leave."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.database import with_pool
from app.cli.output import Json, fail, lasting, notes, say, table, when
from harness.environment import Environment

if TYPE_CHECKING:
    from storage_pg.operator import ObservedHost
    from storage_pg.storage import Pool
    from workers.settings import Settings

host = typer.Typer(help="The processes that own sessions.", no_args_is_help=True)

_LOOK_SECONDS = 0.2


@host.command("list")
def list_hosts(json: Json = False) -> None:
    """Every host on record, and whether it lives."""
    from storage_pg.operator import observe_hosts

    async def work(pool: Pool, settings: Settings) -> list[ObservedHost]:
        return await observe_hosts(pool)

    found = with_pool(work)
    if json:
        for each in found:
            say(True, _document(each), "")
        return
    now = Environment.system().clock.now_ms()
    table(
        False,
        [
            {
                "id": each.id,
                "name": each.name,
                "role": each.role,
                "state": state_of(each),
                "sessions": each.sessions,
                "up": lasting(now - each.started_at),
                "heartbeat": f"{each.silent_seconds:.1f}s ago",
                "address": each.url,
            }
            for each in found
        ],
        ("id", "name", "role", "state", "sessions", "up", "heartbeat", "address"),
    )


@host.command("drain")
def drain_host(
    name: Annotated[str, typer.Argument(metavar="HOST", help="A host's id, or its name.")],
    wait: Annotated[bool, typer.Option("--wait", help="Return when it is gone.")] = False,
    json: Json = False,
) -> None:
    """Tell a host to leave, as SIGTERM would: it takes nothing new, lets what it drives go on for its
    drain time, gives everything back and ends."""
    from storage_pg.operator import observe_hosts, tell_to_leave

    async def work(pool: Pool, settings: Settings) -> str:
        host_id = _choose(await observe_hosts(pool), name)
        if not await tell_to_leave(pool, host_id):
            fail(f"host {host_id} has just gone")
        if wait:
            with notes.status(f"waiting until host {host_id} is gone"):
                # A row that goes tells nobody: there is only looking.
                while any(each.id == host_id for each in await observe_hosts(pool)):  # noqa: ASYNC110 -- see above
                    await asyncio.sleep(_LOOK_SECONDS)
        return host_id

    told = with_pool(work)
    text = f"host {told} is gone" if wait else f"host {told} was told to leave"
    say(json, {"id": told, "gone": wait}, text)


def state_of(each: ObservedHost) -> str:
    """A word on a host: `dead` (its lease connection is gone), `draining`, `leaving` (told to, and not
    yet draining) or `live`."""
    if not each.alive:
        return "dead"
    if each.draining:
        return "draining"
    return "leaving" if each.told_to_leave else "live"


def _choose(found: list[ObservedHost], name: str) -> str:
    chosen = [each.id for each in found if name in (each.id, each.name)]
    if not chosen:
        fail(f"there is no host {name!r}; `laneway host list` shows them")
    if len(chosen) > 1:
        fail(f"several hosts are named {name!r}; give the id of one: {', '.join(chosen)}")
    return chosen[0]


def _document(each: ObservedHost) -> dict[str, object]:
    return {
        "id": each.id,
        "name": each.name,
        "role": each.role,
        "state": state_of(each),
        "sessions": each.sessions,
        "capacity": each.capacity,
        "url": each.url,
        "processId": each.process_id,
        "started": when(each.started_at),
        "silentSeconds": round(each.silent_seconds, 3),
    }
