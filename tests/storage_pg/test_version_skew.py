"""A deploy replaces processes one by one: each side's code works with what the other's migrations made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import psycopg
import pytest
from psycopg.pq import ExecStatus

from harness.storage.queries import load_queries
from storage_pg import migrate, schema
from storage_pg.release import THIS_BUILD, Release, SchemaAhead, SchemaBehind
from tests.postgres import Cluster, Database
from tests.storage_pg.next_release import next_release
from tests.workers.kit import Fleet
from tests.workers.tools import GATES

_STATEMENTS = "tests.storage_pg.statements"
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\))?s")


@pytest.fixture
def coming(tmp_path: Path) -> Release:
    """The release after this build."""
    return next_release(tmp_path)


@pytest.fixture
def empty(pg_cluster: Cluster) -> Iterator[Database]:
    """A database without any schema."""
    made = pg_cluster.empty_database()
    yield made
    pg_cluster.drop(made.name)


def test_each_revision_says_when_it_may_be_taken() -> None:
    revisions = THIS_BUILD.revisions
    assert [each.name for each in revisions] == sorted({each.name for each in revisions})
    assert revisions[0].step == "before"
    assert THIS_BUILD.knows(THIS_BUILD.floor(THIS_BUILD.head))


def test_a_revision_without_a_step_is_refused(tmp_path: Path) -> None:
    (tmp_path / "9001.py").write_text(
        f"revision = '9001'\ndown_revision = {THIS_BUILD.head!r}\n\ndef upgrade(): ...\n"
    )
    with pytest.raises(ValueError, match="9001 has no step"):
        _ = Release((tmp_path,)).revisions


# A tool call, and an answer that is waited for and asked for later.
_TURNS = [
    {"tools": [{"name": "gated", "arguments": {"gate": "skew"}}]},
    {"text": "the end", "defer": 0.05},
]


async def _works(database: Database) -> None:
    """A worker and an API host of this build take a run to its end there."""
    fleet = Fleet(database)
    try:
        await fleet.worker(poll_first_ms=50, poll_longest_ms=100)
        api = await fleet.api()
        GATES["skew"].release.set()
        session = await fleet.session()
        run = await fleet.prompt(api, session, f"script: {json.dumps(_TURNS)}")
        assert await fleet.settled(run) == ["completed"]
        assert "the end" in (await fleet.texts(session))[-1]
        assert await fleet.owner(session) in (None, fleet.hosts[0].host_id)
    finally:
        await fleet.close()
        GATES.clear()


async def test_this_build_works_before_its_own_steps_after_a_deploy(empty: Database) -> None:
    assert migrate.upgrade(empty.owner_dsn, steps="before") == THIS_BUILD.needed
    schema.check(empty.owner_dsn)
    await _works(empty)


async def test_this_build_works_after_the_next_ones_steps_before_the_deploy(
    fresh_database: Database, coming: Release
) -> None:
    owner = fresh_database.owner_dsn
    with pytest.raises(SchemaBehind):
        schema.check(owner, release=coming)
    with pytest.raises(migrate.StepsBeforePending):
        migrate.upgrade(owner, steps="after", release=coming)
    assert migrate.upgrade(owner, steps="before", release=coming) == "9001"
    schema.check(owner, release=coming)
    schema.check(owner)
    await _works(fresh_database)
    # Its own migration is not the older one's to touch.
    with pytest.raises(SchemaAhead):
        migrate.upgrade(owner)


def test_this_build_is_refused_after_the_next_ones_last_steps(
    fresh_database: Database, coming: Release
) -> None:
    owner = fresh_database.owner_dsn
    migrate.upgrade(owner, steps="before", release=coming)
    assert migrate.upgrade(owner, steps="after", release=coming) == "9002"
    schema.check(owner, release=coming)
    with pytest.raises(SchemaAhead, match="9002"):
        schema.check(owner)
    # Steps that were taken stay taken, whichever are asked for again.
    assert migrate.upgrade(owner, steps="before", release=coming) == "9002"


def _frozen() -> list[str]:
    folder = resources.files(_STATEMENTS)
    return sorted(item.name for item in folder.iterdir() if item.name.endswith(".sql"))


@pytest.mark.parametrize("file", _frozen())
def test_every_statement_of_the_release_before_is_understood(empty: Database, file: str) -> None:
    assert THIS_BUILD.knows(file.removesuffix(".sql"))
    migrate.upgrade(empty.owner_dsn, steps="before")
    refused: dict[str, str] = {}
    with psycopg.connect(empty.app_dsn, autocommit=True) as app:
        for name, statement in load_queries(_STATEMENTS, file).items():
            if "{" in statement:
                continue  # identifiers are filled in: only the owner runs these
            result = app.pgconn.prepare(b"", _numbered(statement).encode())
            if result.status != ExecStatus.COMMAND_OK:
                refused[name] = result.error_message.decode()
    assert refused == {}


def _numbered(statement: str) -> str:
    """The statement as the server takes it: the driver's placeholders become $1, $2 and so on."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        name = found[1] or f"#{len(names)}"
        return f"${names.setdefault(name, len(names) + 1)}"

    return _PLACEHOLDER.sub(number, statement).replace("%%", "%")
