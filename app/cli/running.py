"""Commands that run processes: `dev`, `api`, `worker`, and `migrate` before them.

Each imports what it runs when it runs it: a worker needs no web framework, and starts faster without.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import psycopg
import typer

from app.cli.configuration import settings
from app.cli.output import Json, fail, log_to_stderr, notes, say
from app.cli.parent import UntilStdinEnds, stop_with_parent
from harness.errors import HarnessError

if TYPE_CHECKING:
    from workers.host import SessionHost


def dev(
    data_dir: Annotated[Path, typer.Option(help="Where everything is kept.")] = Path(".laneway"),
    port: Annotated[int, typer.Option(envvar="LANEWAY_PORT", help="0 takes a free one.")] = 8080,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Worker processes.")] = 2,
    local_model: Annotated[
        bool, typer.Option("--local-model", help="Use a small language model on this machine.")
    ] = False,
    json: Json = False,
) -> None:
    """Run everything on this machine, on a Postgres of its own; Ctrl-C ends it."""
    from app.cli.children import ChildFailed
    from app.cli.dev import DevOptions, Stop, curl_line, dev_stack
    from app.local_model import LocalModelFailed, LocalModelMissing
    from storage_pg.embedded import DataDirectoryInUse, EmbeddedUnavailable, ServerFailed
    from storage_pg.release import SchemaAhead

    log_to_stderr()

    def tell(text: str) -> None:
        notes.print(f"[dim]laneway:[/dim] {text}")

    async def run() -> None:
        stop = Stop()
        options = DevOptions(data_dir, port, workers, local_model)
        async with dev_stack(options, tell) as stack:
            stopped = asyncio.ensure_future(stop.wait())
            await asyncio.sleep(0)
            say(
                json,
                {
                    "url": stack.url,
                    "apiKey": stack.api_key,
                    "tenantId": stack.tenant_id,
                    "pids": stack.pids(),
                },
                f"\nLaneway is ready at {stack.url}\n  API key: {stack.api_key}\n\n"
                f"  {curl_line(stack)}\n",
            )
            await stopped
            tell("stopping")

    try:
        asyncio.run(run())
    except (
        ChildFailed,
        DataDirectoryInUse,
        EmbeddedUnavailable,
        ServerFailed,
        LocalModelMissing,
        LocalModelFailed,
        SchemaAhead,
        RuntimeError,
        OSError,
    ) as error:
        fail(str(error))
    except asyncio.CancelledError:
        raise typer.Exit(130) from None


def api(
    host: Annotated[str | None, typer.Option(help="Where it listens.")] = None,
    port: Annotated[int | None, typer.Option(help="0 takes a free one.")] = None,
    json: Json = False,
    until_stdin_ends: UntilStdinEnds = False,
) -> None:
    """Run the HTTP service until SIGTERM, which drains it."""
    import uvloop

    from app.cli.tracing import start_tracing
    from app.http.serve import serve

    log_to_stderr()
    start_tracing("laneway-api")
    found = settings(joins_fleet=True, host=host, port=port)
    stop_with_parent(until_stdin_ends)

    def ready(url: str) -> None:
        say(json, {"url": url}, f"Laneway's API is ready at {url}")

    try:
        uvloop.run(serve(found, ready=ready))
    except (OSError, HarnessError, RuntimeError, psycopg.Error) as error:
        fail(str(error))


def worker(json: Json = False, until_stdin_ends: UntilStdinEnds = False) -> None:
    """Run a worker until SIGTERM, which drains it."""
    import uvloop

    from app.cli.tracing import start_tracing
    from workers.worker import end_process_soon, run_worker

    log_to_stderr()
    start_tracing("laneway-worker")
    found = settings(joins_fleet=True)
    stop_with_parent(until_stdin_ends)

    def ready(host: SessionHost) -> None:
        say(json, {"hostId": host.host_id}, f"this worker is host {host.host_id}")

    try:
        uvloop.run(run_worker(found, ready=ready, left=end_process_soon))
    except (OSError, HarnessError, RuntimeError, psycopg.Error) as error:
        fail(str(error))


def migrate_schema(
    app_role: Annotated[
        str, typer.Option(help="The role that API and workers use; '' when it is the owner.")
    ] = "laneway_app",
    before: Annotated[
        bool, typer.Option("--before", help="Only what may be done while older processes run.")
    ] = False,
    after: Annotated[
        bool, typer.Option("--after", help="The rest, when no older process runs any more.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Only look whether it is needed.")] = False,
    json: Json = False,
) -> None:
    """Bring the database's schema up to this version: at once, or before and after a deploy."""
    from storage_pg import migrate, schema
    from storage_pg.release import SchemaAhead, SchemaBehind

    if before and after:
        fail("--before and --after exclude each other; without either, everything is done")
    found = settings(joins_fleet=False)
    dsn = found.owner_database_url or found.direct_url
    try:
        if check:
            schema.check(dsn)
            revision = schema.current(dsn)
            say(json, {"revision": revision}, f"the schema is at {revision}, which will do")
            return
        revision = migrate.upgrade(
            dsn,
            steps="before" if before else "after" if after else "all",
            app_role=app_role or None,
            partitions_ahead=found.partitions_ahead,
            progress=None if json else notes.print,
        )
    except (
        SchemaBehind,
        SchemaAhead,
        migrate.StepsBeforePending,
        LookupError,
        psycopg.Error,
    ) as error:
        fail(str(error))
    say(json, {"revision": revision}, f"the schema is at {revision}")
