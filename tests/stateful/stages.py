"""Pairs of backends on which random sessions are played."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import psycopg
from psycopg.rows import TupleRow

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
    hosts: list[_Host] = []
    places = {name: _maker(name, folder, database, hosts) for name in (left, right)}
    made = Stage(places)
    try:
        yield made
    finally:
        for host in hosts:
            host.reads.close()
            made.run("postgres", host.kit.close())
        made.close()


@dataclass(frozen=True, slots=True)
class _Host:
    """A host on Postgres, and a connection to look at what is durable."""

    kit: Kit
    reads: psycopg.Connection[TupleRow]


def _maker(
    name: Backend, folder: Path, database: Callable[[], Database], hosts: list[_Host]
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
                if not hosts:
                    kit = await Kit.open(database())
                    reads = psycopg.connect(kit.database.app_dsn, prepare_threshold=None)
                    hosts.append(_Host(kit, reads))
                return partial(_postgres, hosts[0])

    return make


def _postgres(host: _Host, environment: Environment) -> Place:
    return PostgresPlace(environment, host.kit, host.reads)
