"""Behind a real pgbouncer in transaction mode: nothing is left on the connections that it lends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from harness.context import BACKGROUND
from harness.storage.address import value
from harness.storage.writes import set_value
from storage_pg.lease import HostIdentity, HostLease
from storage_pg.pooler import PoolerOnDirectUrl, refuse_pooler
from tests.pooler import Pooler, PoolerSettings
from tests.pooler_package import NoPooler, pooler_program
from tests.postgres import Cluster, Database
from tests.storage_pg.kit import Kit
from tests.workers.kit import SECRET, Fleet
from tests.workers.tools import GATES

COUNTER = value(int, "app.counter")
# From these versions on pgbouncer can keep track of prepared statements, and does unasked.
TRACKS_STATEMENTS = (1, 21)
TRACKS_BY_DEFAULT = (1, 24)
# Set for every connection by the driver or by the pooler, to the same in all of them.
_HARMLESS = {
    "application_name",
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "standard_conforming_strings",
}


@pytest.fixture
def narrow(request: pytest.FixtureRequest, pg_cluster: Cluster, tmp_path: Path) -> Iterator[Pooler]:
    """A pooler of this test's own with one connection to the server, which everybody gets in turn."""
    settings: PoolerSettings = getattr(request, "param", PoolerSettings(size=1))
    try:
        program = pooler_program()
    except NoPooler as error:
        pytest.skip(str(error))
    if settings.extra and program.version < TRACKS_STATEMENTS:
        pytest.skip(f"this pgbouncer knows no {settings.extra[0].partition(' ')[0]}")
    made = Pooler(program, tmp_path, pg_cluster.server_dsn, settings).start()
    yield made
    made.stop()


async def test_it_is_refused_as_the_direct_address(pooler: Pooler, kit: Kit) -> None:
    pooled = pooler.address(kit.database.direct_dsn)
    lease = HostLease(pooled, HostIdentity("x", "worker"), kit.environment.ids)
    with pytest.raises(PoolerOnDirectUrl, match="LANEWAY_DIRECT_DATABASE_URL"):
        await lease.start()


@pytest.mark.parametrize("role", ["worker", "api"])
def test_a_process_with_it_there_does_not_start_and_says_why(
    pooler: Pooler, database: Database, role: str
) -> None:
    environment = {
        "LANEWAY_DATABASE_URL": pooler.address(database.app_dsn),
        "LANEWAY_DIRECT_DATABASE_URL": pooler.address(database.direct_dsn),
        "LANEWAY_CLUSTER_SECRET": SECRET,
        "LANEWAY_PORT": "0",
    }
    result = CliRunner().invoke(cli, [role], env=environment)
    assert result.exit_code == 1
    assert "LANEWAY_DIRECT_DATABASE_URL" in result.output


@pytest.mark.parametrize("narrow", [PoolerSettings(mode="session")], indirect=True)
async def test_session_mode_is_fine(narrow: Pooler, database: Database) -> None:
    await refuse_pooler(narrow.address(database.direct_dsn))


async def test_the_database_itself_is_fine(kit: Kit) -> None:
    await refuse_pooler(kit.database.direct_dsn)


async def test_nothing_stays_on_a_lent_connection(narrow: Pooler, fresh_database: Database) -> None:
    database = narrow.through(fresh_database)
    fleet = Fleet(database)
    try:
        worker, api = await fleet.worker(), await fleet.api()
        session = await fleet.session()
        gate = GATES["pooled"]
        run = await fleet.prompt(
            api, session, 'tool: {"name": "gated", "arguments": {"gate": "pooled"}}'
        )
        await gate.entered.wait()
        # In the middle of a run: locks are held, hints are listened for, commits went through.
        left = _left_behind(database)
        assert left.pop("backend") not in _holders(fresh_database)
        assert left == {
            "prepared": [],
            "channels": [],
            "locks": [],
            "tenant": [""],
            "settings": [],
            "visible": [0],
        }
        assert _holders(fresh_database) == _leases(fresh_database)
        assert await fleet.owner(session) == worker.host_id
        gate.release.set()
        assert await fleet.settled(run) == ["completed"]
    finally:
        await fleet.close()
        GATES.clear()


def _left_behind(database: Database) -> dict[str, list[object] | int]:
    """What the one connection to the server still has of those who had it before."""
    with psycopg.connect(database.app_dsn, autocommit=True, prepare_threshold=None) as pooled:

        def column(query: str) -> list[object]:
            return [row[0] for row in pooled.execute(query).fetchall()]  # pyright: ignore[reportArgumentType, reportCallIssue]  # literals above and below

        backend = column("SELECT pg_backend_pid()")[0]
        assert isinstance(backend, int)
        return {
            "backend": backend,
            "prepared": column("SELECT name FROM pg_prepared_statements"),
            "channels": column("SELECT pg_listening_channels()"),
            "locks": column(
                "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
            ),
            "tenant": column("SELECT coalesce(current_setting('laneway.tenant', true), '')"),
            "settings": [
                name
                for name in column("SELECT name FROM pg_settings WHERE source = 'session'")
                if name not in _HARMLESS
            ],
            "visible": column("SELECT count(*) FROM laneway.sessions"),
        }


def _holders(database: Database) -> set[int]:
    """The server processes that hold advisory locks in this database."""
    with psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        rows = admin.execute(
            "SELECT DISTINCT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        ).fetchall()
    return {row[0] for row in rows}


def _leases(database: Database) -> set[int]:
    with psycopg.connect(database.admin_dsn, autocommit=True) as admin:
        rows = admin.execute("SELECT lease_pid FROM laneway.hosts").fetchall()
    return {row[0] for row in rows}


async def test_tenants_that_share_a_connection_see_nothing_of_each_other(
    narrow: Pooler, fresh_database: Database
) -> None:
    kit = await Kit.open(narrow.through(fresh_database))
    try:
        stranger = kit.new_tenant()
        mine = await kit.open_new()
        await mine.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
        theirs = await kit.sessions.open(stranger, (await kit.sessions.create(stranger)).id)
        assert await theirs.storage.get_value(COUNTER, BACKGROUND) is None
        # The very next statement on the same server process, with the other tenant's name.
        wrong = kit.sessions.reader(stranger, mine.claimed.id)
        assert await wrong.get_value(COUNTER, BACKGROUND) is None
        right = kit.sessions.reader(kit.tenant, mine.claimed.id)
        found = await right.get_value(COUNTER, BACKGROUND)
        assert found is not None
        assert found.value == 1
        await mine.storage.close(BACKGROUND)
        await theirs.storage.close(BACKGROUND)
    finally:
        await kit.close()


_TRACKING = PoolerSettings(size=1, extra=("max_prepared_statements = 20",))


@pytest.mark.parametrize("narrow", [_TRACKING], indirect=True)
async def test_a_pooler_that_tracks_statements_is_no_different(
    narrow: Pooler, fresh_database: Database
) -> None:
    dsn = narrow.address(fresh_database.app_dsn)
    assert _named_by_two_clients(dsn) == (2,)
    kit = await Kit.open(narrow.through(fresh_database))
    owned = await kit.open_new()
    await owned.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
    await owned.storage.close(BACKGROUND)
    await kit.close()


async def test_why_we_name_no_statement(narrow: Pooler, database: Database) -> None:
    """A driver that prepares by itself, as ours is told not to, meets the statements of others."""
    if narrow.version >= TRACKS_BY_DEFAULT:
        pytest.skip("this pgbouncer keeps track of statements unasked")
    with pytest.raises(psycopg.errors.DuplicatePreparedStatement):
        _named_by_two_clients(narrow.address(database.app_dsn))


def _named_by_two_clients(dsn: str) -> tuple[object, ...] | None:
    with (
        psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as first,
        psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as second,
    ):
        first.execute("SELECT %s::int", (1,))
        return second.execute("SELECT %s::int", (2,)).fetchone()


async def test_a_pooler_that_goes_away_and_comes_back(
    narrow: Pooler, fresh_database: Database
) -> None:
    """Leases are not its business: nothing that is owned is lost with it."""
    kit = await Kit.open(narrow.through(fresh_database))
    try:
        owned = await kit.open_new()
        await owned.storage.commit([set_value(COUNTER, 1)], BACKGROUND)
        host = kit.lease.host_id
        narrow.stop()
        narrow.start()
        await owned.storage.commit([set_value(COUNTER, 2)], BACKGROUND)
        assert kit.lease.host_id == host
        await owned.storage.close(BACKGROUND)
    finally:
        await kit.close()
