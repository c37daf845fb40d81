"""`laneway`: run it, migrate it, give tenants their keys, look after the fleet (design §8)."""

from __future__ import annotations

import typer

from app.cli import catalog, examining, hosts, operations, running, sweeping

cli = typer.Typer(
    name="laneway",
    help="Durable agent sessions on Postgres.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    add_completion=False,
)
cli.command("dev")(running.dev)
cli.command("api")(running.api)
cli.command("worker")(running.worker)
cli.command("migrate")(running.migrate_schema)
cli.command("doctor")(examining.doctor)
cli.command("sweep")(sweeping.sweep_now)
cli.add_typer(catalog.tenant, name="tenant")
cli.add_typer(catalog.key, name="key")
cli.add_typer(hosts.host, name="host")
cli.add_typer(operations.operation, name="operation")


def main() -> None:
    """The console script."""
    cli()


if __name__ == "__main__":
    main()
