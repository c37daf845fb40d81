"""All named statements of this package, loaded once."""

from __future__ import annotations

from typing import LiteralString, cast

from harness.storage.queries import load_queries

_FILES = (
    "storage.sql",
    "sessions.sql",
    "hosts.sql",
    "dispatch.sql",
    "hosting.sql",
    "admin.sql",
    "search.sql",
    "copies.sql",
    "migrating.sql",
    "operator.sql",
)


def _load() -> dict[str, LiteralString]:
    found: dict[str, LiteralString] = {}
    for file in _FILES:
        for name, statement in load_queries("storage_pg.sql", file).items():
            if name in found:
                raise ValueError(f"{name} is named in two files")
            # psycopg takes only literals so that nobody assembles SQL: these are the literals.
            found[name] = cast("LiteralString", statement)
    return found


QUERIES = _load()
