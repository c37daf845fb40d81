"""Commands on the catalogue: tenants and their API keys."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from app.cli.configuration import settings
from app.cli.output import Json, fail, say, table, when
from app.scopes import SCOPES
from harness.environment import Environment

if TYPE_CHECKING:
    from storage_pg.catalog import Catalog, Tenant

T = TypeVar("T")

tenant = typer.Typer(help="Who is served.", no_args_is_help=True)
key = typer.Typer(help="A tenant's API keys.", no_args_is_help=True)

TenantName = Annotated[str, typer.Option("--tenant", help="The tenant's name or id.")]
_DAY_MS = 86_400_000


def with_catalog(work: Callable[[Catalog], Awaitable[T]]) -> T:
    """Run something on the catalogue; ends the command when the database refuses."""
    from sqlalchemy.exc import SQLAlchemyError

    from storage_pg.catalog import Catalog, open_engine

    found = settings(joins_fleet=False)

    async def run() -> T:
        environment = Environment.system()
        engine = open_engine(found.database_url, size=1)
        try:
            return await work(Catalog(engine, environment.clock, environment.ids))
        finally:
            await engine.dispose()

    try:
        return asyncio.run(run())
    except SQLAlchemyError as error:
        fail(f"the database refused: {getattr(error, 'orig', None) or error}")


async def require_tenant(catalog: Catalog, name: str) -> Tenant:
    """The tenant of that name or id; ends the command when there is none."""
    found = await catalog.find_tenant(name)
    if found is None and _is_uuid(name):
        found = await catalog.get_tenant(name)
    if found is None:
        fail(f"there is no tenant {name!r}; `laneway tenant list` shows them")
    return found


def _is_uuid(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return True


@tenant.command("create")
def create_tenant(
    name: Annotated[str, typer.Argument()],
    tenant_class: Annotated[
        str | None,
        typer.Option("--class", help="A word that metrics group tenants by; there should be few."),
    ] = None,
    json: Json = False,
) -> None:
    """Register a tenant; give it a key with `laneway key create`."""

    from storage_pg.catalog import NameTaken

    async def work(catalog: Catalog) -> Tenant:
        try:
            limits = None if tenant_class is None else {"class": tenant_class}
            return await catalog.create_tenant(name, limits)
        except NameTaken as error:
            fail(str(error))

    made = with_catalog(work)
    say(json, {"id": made.id, "name": made.name}, f"tenant {made.name}: {made.id}")


@tenant.command("list")
def list_tenants(json: Json = False) -> None:
    """All tenants."""

    async def work(catalog: Catalog) -> list[Tenant]:
        return await catalog.list_tenants()

    rows = [
        {
            "id": item.id,
            "name": item.name,
            "created": when(item.created_at),
            "disabled": when(item.disabled_at),
        }
        for item in with_catalog(work)
    ]
    table(json, rows, ("id", "name", "created", "disabled"))


@key.command("create")
def create_key(
    tenant_name: TenantName,
    name: Annotated[str, typer.Option(help="What it is for.")] = "key",
    scope: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(SCOPES)}; may be given several times."),
    ] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days until it expires.")] = None,
    json: Json = False,
) -> None:
    """Make an API key. It is shown now and never again."""
    scopes = tuple(scope) if scope else tuple(each for each in SCOPES if each != "admin")
    unknown = [each for each in scopes if each not in SCOPES]
    if unknown:
        fail(f"there is no scope {unknown[0]!r}; scopes are {', '.join(SCOPES)}")

    async def work(catalog: Catalog) -> dict[str, Any]:
        owner = await require_tenant(catalog, tenant_name)
        now = Environment.system().clock.now_ms()
        expires = None if days is None else now + days * _DAY_MS
        minted = await catalog.create_key(owner.id, name, scopes, expires)
        return {
            "id": minted.key.id,
            "key": minted.plain,
            "tenantId": owner.id,
            "scopes": list(scopes),
            "expiresAt": expires,
        }

    made = with_catalog(work)
    say(json, made, f"{made['key']}\n  (kept as a hash: write it down now)")


@key.command("list")
def list_keys(tenant_name: TenantName, json: Json = False) -> None:
    """A tenant's keys, without their secrets."""

    async def work(catalog: Catalog) -> list[dict[str, object]]:
        owner = await require_tenant(catalog, tenant_name)
        return [
            {
                **asdict(item),
                "created": when(item.created_at),
                "expires": when(item.expires_at),
                "revoked": when(item.revoked_at),
            }
            for item in await catalog.list_keys(owner.id)
        ]

    columns = ("id", "name", "scopes", "created", "expires", "revoked")
    rows = [{column: row[column] for column in columns} for row in with_catalog(work)]
    table(json, rows, columns)


@key.command("revoke")
def revoke_key(
    key_id: Annotated[str, typer.Argument()], tenant_name: TenantName, json: Json = False
) -> None:
    """Refuse a key from now on."""

    async def work(catalog: Catalog) -> bool:
        return await catalog.revoke_key((await require_tenant(catalog, tenant_name)).id, key_id)

    if not with_catalog(work):
        fail(f"the tenant has no working key {key_id!r}")
    say(json, {"id": key_id, "revoked": True}, f"key {key_id} is revoked")
