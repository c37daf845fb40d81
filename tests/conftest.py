"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.pooler import Pooler
from tests.pooler_package import NoPooler, pooler_program
from tests.postgres import Cluster, Database, SharedCluster

# Modules whose tests run on a database and again behind a pooler.
_POOLED_TOO = frozenset(
    {
        "tests/app/test_entries_and_usage.py",
        "tests/app/test_operations.py",
        "tests/app/test_sessions.py",
        "tests/storage_pg/test_catalog.py",
        "tests/storage_pg/test_commit.py",
        "tests/storage_pg/test_copies.py",
        "tests/storage_pg/test_open_operations.py",
        "tests/workers/test_commands.py",
        "tests/workers/test_wakes.py",
    }
)

_SHARED = pytest.StashKey[SharedCluster]()


@pytest.fixture(scope="session")
def pg_cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """The test run's Postgres server, started by the first test that asks for it."""
    base = tmp_path_factory.getbasetemp()
    # Under xdist each worker has a folder of its own below the run's.
    folder = base.parent if hasattr(request.config, "workerinput") else base
    shared = request.config.stash.setdefault(_SHARED, SharedCluster(folder))
    return shared.get()


@pytest.fixture(scope="session")
def pooler(pg_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pooler]:
    """This test process's pgbouncer before the test run's server; skips where there is none."""
    try:
        program = pooler_program()
    except NoPooler as error:
        pytest.skip(str(error))
    made = Pooler(program, tmp_path_factory.mktemp("pooler"), pg_cluster.server_dsn).start()
    yield made
    made.stop()


Route = Callable[[Database], Database]


@pytest.fixture(scope="session")
def route(request: pytest.FixtureRequest) -> Route:
    """How the application reaches its database: directly, and in some modules also through a
    pooler."""
    if getattr(request, "param", "direct") == "direct":
        return lambda database: database
    pooler: Pooler = request.getfixturevalue("pooler")
    return pooler.through


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of some modules run on both routes to the database."""
    module = metafunc.definition.nodeid.partition("::")[0]
    if module in _POOLED_TOO and "route" in metafunc.fixturenames:
        metafunc.parametrize("route", ["direct", "pooled"], indirect=True, scope="session")


@pytest.fixture(scope="session")
def database(pg_cluster: Cluster, route: Route) -> Database:
    """This test process's migrated database, shared by its tests: use ids of your own."""
    return route(pg_cluster.new_database())


@pytest.fixture
def fresh_database(pg_cluster: Cluster, route: Route) -> Iterator[Database]:
    """A migrated database for one test alone."""
    made = route(pg_cluster.new_database())
    yield made
    pg_cluster.drop(made.name)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Not a fixture's end: it waits for the other workers, and no test's time limit may cut it short."""
    shared = config.stash.get(_SHARED, None)
    if shared is not None:
        shared.close()
