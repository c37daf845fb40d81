"""`laneway`: run it, migrate it, give tenants their keys (design §8)."""

from __future__ import annotations

import typer

from app.cli import catalog, running

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
cli.add_typer(catalog.tenant, name="tenant")
cli.add_typer(catalog.key, name="key")


def main() -> None:
    """The console script."""
    cli()


if __name__ == "__main__":
    main()
