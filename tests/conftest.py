"""Fixtures shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import Cluster, Database, SharedCluster

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
def database(pg_cluster: Cluster) -> Database:
    """This test process's migrated database, shared by its tests: use ids of your own."""
    return pg_cluster.new_database()


@pytest.fixture
def fresh_database(pg_cluster: Cluster) -> Iterator[Database]:
    """A migrated database for one test alone."""
    made = pg_cluster.new_database()
    yield made
    pg_cluster.drop(made.name)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Not a fixture's end: it waits for the other workers, and no test's time limit may cut it short."""
    shared = config.stash.get(_SHARED, None)
    if shared is not None:
        shared.close()
