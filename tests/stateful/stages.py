"""Pairs of backends on which random sessions are played."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

from harness.environment import Environment
from tests.postgres import Database
from tests.stateful.machine import Stage
from tests.stateful.places import Folder, MakePlace, Place, PostgresPlace, memory
from tests.storage_pg.kit import Kit

Backend = Literal["memory", "jsonl", "sqlite", "postgres"]


@contextmanager
def stage(
    left: Backend, right: Backend, folder: Path, database: Callable[[], Database]
) -> Generator[Stage]:
    """A stage of two backends; `database` is asked only when one of them is Postgres."""
    kits: list[Kit] = []
    places = {name: _maker(name, folder, database, kits) for name in (left, right)}
    made = Stage(places)
    try:
        yield made
    finally:
        for kit in kits:
            made.run("postgres", kit.close())
        made.close()


def _maker(
    name: Backend, folder: Path, database: Callable[[], Database], kits: list[Kit]
) -> Callable[[], Coroutine[Any, Any, MakePlace]]:
    here = Folder(folder)

    async def make() -> MakePlace:
        match name:
            case "memory":
                return memory
            case "jsonl":
                return here.jsonl
            case "sqlite":
                return here.sqlite
            case "postgres":
                if not kits:
                    kits.append(await Kit.open(database()))
                return partial(_postgres, kits[0])

    return make


def _postgres(kit: Kit, environment: Environment) -> Place:
    return PostgresPlace(environment, kit)
