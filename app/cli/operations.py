"""Commands on operations of any tenant: what is open, why it does not move, and how to move or end it."""

from __future__ import annotations

import re
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import msgspec
import typer

from app.cli.catalog import require_tenant, with_catalog
from app.cli.database import command_session, with_pool
from app.cli.output import Json, fail, lasting, say, table, when
from harness.environment import Environment

if TYPE_CHECKING:
    from storage_pg.catalog import Catalog
    from storage_pg.operator import OperationRecord
    from storage_pg.storage import Pool
    from workers.settings import Settings

operation = typer.Typer(help="Operations of any tenant.", no_args_is_help=True)

_AGE = re.compile(r"(\d+)\s*([smhd])")
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

OperationId = Annotated[str, typer.Argument(metavar="ID", help="The operation's id.")]


class State(StrEnum):
    """Where an open operation stands."""

    WAITING = "waiting"
    DRIVEN = "driven"
    SCHEDULED = "scheduled"


@operation.command("list")
def list_operations(
    tenant: Annotated[str | None, typer.Option(help="Of this tenant: its name or id.")] = None,
    state: Annotated[
        State | None,
        typer.Option(
            help="waiting: due, and nobody drives it; driven: a worker has it; scheduled: due later."
        ),
    ] = None,
    older_than: Annotated[
        str | None, typer.Option(help="Accepted at least this long ago: 90s, 10m, 2h, 3d.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 100,
    json: Json = False,
) -> None:
    """Open operations, those accepted first first."""
    from storage_pg.operator import list_operation_records

    now = _now()
    before = None if older_than is None else now - _age(older_than)
    tenant_id = None if tenant is None else _tenant_id(tenant)

    async def work(pool: Pool, settings: Settings) -> list[OperationRecord]:
        return await list_operation_records(
            pool,
            now,
            tenant_id=tenant_id,
            state=None if state is None else state.value,
            accepted_before=before,
            at_most=limit,
        )

    found = with_pool(work)
    if json:
        for each in found:
            say(True, _document(each), "")
        return
    rows = [
        {
            "id": each.id,
            "tenant": each.tenant,
            "lane": each.lane,
            "kind": each.kind,
            "state": each.state,
            "age": lasting(now - each.accepted_at),
            "due": _due(each, now),
            "passes": each.passes,
            "host": each.host,
        }
        for each in found
    ]
    table(False, rows, ("id", "tenant", "lane", "kind", "state", "age", "due", "passes", "host"))


@operation.command("show")
def show_operation(operation_id: OperationId, json: Json = False) -> None:
    """Everything that is known of one operation but what was said in it."""
    found, now = _record(operation_id), _now()
    document = _document(found)
    if json:
        say(True, document, "")
        return
    due = _due(found, now)
    lines = {**document, "due": f"{document['due']} ({due})" if due else None}
    width = max(map(len, lines))
    for name, value in lines.items():
        if value is not None:
            say(False, {}, f"{name:<{width}}  {value}")


@operation.command("wake")
def wake_operation(operation_id: OperationId, json: Json = False) -> None:
    """Have an open operation looked at now: dispatched again if it is due, and a background response
    polled. A retry's wait is not cut short."""
    from storage_pg.operator import undispatch
    from workers.commands import Resume

    found = _open(operation_id)

    async def work(pool: Pool, settings: Settings) -> bool:
        return await undispatch(pool, found.tenant_id, found.id)

    with_pool(work)
    command_session(found.tenant_id, found.session_id, Resume(lane=found.lane))
    say(json, {"id": found.id, "woken": True}, f"operation {found.id} is looked at now")


@operation.command("abort")
def abort_operation(operation_id: OperationId, json: Json = False) -> None:
    """Cancel an open operation, as `POST /v1/operations/{id}/abort` does, whoever drives it."""
    from workers.commands import RequestAbort

    found = _open(operation_id)
    answer = command_session(
        found.tenant_id,
        found.session_id,
        RequestAbort(lane=found.lane, operation_id=found.id),
    )
    say(
        json,
        {"id": found.id, **msgspec.json.decode(answer, type=dict[str, object])},
        f"operation {found.id} was told to stop; `laneway operation show` says when it has",
    )


def _record(operation_id: str) -> OperationRecord:
    from storage_pg.operator import find_operation_record

    try:
        canonical = str(uuid.UUID(operation_id))
    except ValueError:
        _unknown(operation_id)

    async def work(pool: Pool, settings: Settings) -> OperationRecord | None:
        return await find_operation_record(pool, canonical, _now())

    return with_pool(work) or _unknown(operation_id)


def _open(operation_id: str) -> OperationRecord:
    found = _record(operation_id)
    if found.state == "done":
        fail(f"operation {found.id} is over: {found.outcome or 'its session was deleted'}")
    return found


def _unknown(operation_id: str) -> NoReturn:
    fail(f"there is no operation {operation_id!r}; `laneway operation list` shows those open")


def _tenant_id(name: str) -> str:
    async def work(catalog: Catalog) -> str:
        return (await require_tenant(catalog, name)).id

    return with_catalog(work)


def _age(text: str) -> int:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        fail(f"--older-than {text!r}: write a number and s, m, h or d, as in 10m")
    return int(match[1]) * _UNITS[match[2]]


def _now() -> int:
    return Environment.system().clock.now_ms()


def _due(each: OperationRecord, now: int) -> str | None:
    if each.due_at is None:
        return None
    if each.due_at > now:
        return f"in {lasting(each.due_at - now)}"
    return f"since {lasting(now - each.due_at)}"


def _document(each: OperationRecord) -> dict[str, object]:
    error = None if each.error is None else msgspec.json.decode(each.error)
    return {
        "id": each.id,
        "tenantId": each.tenant_id,
        "tenant": each.tenant,
        "sessionId": each.session_id,
        "lane": each.lane,
        "kind": each.kind,
        "state": each.state,
        "accepted": when(each.accepted_at),
        "due": when(each.due_at),
        "dispatched": when(each.dispatched_at),
        "passes": each.passes,
        "lastReason": each.last_reason,
        "hostId": each.host_id,
        "host": each.host,
        "outcome": each.outcome,
        "error": error,
        "finished": when(each.finished_at),
    }
