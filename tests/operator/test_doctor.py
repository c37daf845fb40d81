"""The doctor finds what is wrong, says what to do, and is content with what is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import psycopg
import pytest

from harness.environment import Environment
from tests.operator.kit import Said, command
from tests.pooler import Pooler
from tests.postgres import Cluster, Database
from tests.workers.kit import Fleet


async def examined(database: Database, **environment: str) -> tuple[Said, dict[str, str]]:
    said = await command(database, "doctor", "--json", **environment)
    verdicts = {finding["check"]: finding["verdict"] for finding in said.documents}
    for finding in said.documents:
        assert (finding["verdict"] in ("warn", "fail")) == bool(finding["advice"])
    return said, verdicts


def owner(database: Database, statement: str, *parameters: object) -> None:
    with psycopg.connect(database.admin_dsn, autocommit=True) as connection:
        connection.execute(statement, parameters)  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.fixture
def empty(pg_cluster: Cluster) -> Iterator[Database]:
    made = pg_cluster.empty_database()
    yield made
    pg_cluster.drop(made.name)


async def test_a_healthy_fleet_has_nothing_to_complain_of(fleet: Fleet) -> None:
    worker = await fleet.worker()
    await fleet.api()
    await fleet.settled(await fleet.prompt(worker, await fleet.session(), "echo: x"))
    # A test server takes a hundred connections and small lock tables.
    small = {"LANEWAY_MAX_SESSIONS": "100"}
    said, verdicts = await examined(fleet.database, **small)
    assert said.status == 0, said.text
    assert set(verdicts.values()) == {"ok"}, said.text
    assert {"database", "direct database", "no pooler", "clock", "schema", "row security"} < set(
        verdicts
    )
    text = await command(fleet.database, "doctor", **small)
    assert text.status == 0
    assert "every open operation has its row" in text.text


async def test_an_address_where_nobody_answers(fresh_database: Database) -> None:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        closed = f"postgresql://nobody@127.0.0.1:{door.getsockname()[1]}/x"
    said, verdicts = await examined(fresh_database, LANEWAY_DIRECT_DATABASE_URL=closed)
    assert said.status == 1
    assert verdicts == {"database": "ok", "direct database": "fail", "everything else": "skipped"}
    said, verdicts = await examined(fresh_database, LANEWAY_DATABASE_URL=closed)
    assert (said.status, verdicts["database"]) == (1, "fail")


async def test_two_addresses_of_different_databases(
    fresh_database: Database, empty: Database
) -> None:
    said, verdicts = await examined(fresh_database, LANEWAY_DIRECT_DATABASE_URL=empty.app_dsn)
    assert (said.status, verdicts["same database"]) == (1, "fail")


async def test_a_schema_that_is_missing(empty: Database) -> None:
    said, verdicts = await examined(empty)
    assert (said.status, verdicts["schema"]) == (1, "fail")
    assert "laneway migrate" in said.text


async def test_a_role_that_row_security_does_not_hold(fresh_database: Database) -> None:
    for dsn in (fresh_database.owner_dsn, fresh_database.admin_dsn):
        said, verdicts = await examined(fresh_database, LANEWAY_DATABASE_URL=dsn)
        assert (said.status, verdicts["row security"]) == (1, "fail")


async def test_limits_that_do_not_suffice(fresh_database: Database) -> None:
    _, verdicts = await examined(fresh_database, LANEWAY_MAX_SESSIONS="1000000")
    assert verdicts["locks"] == "fail"
    _, verdicts = await examined(fresh_database, LANEWAY_POOL_SIZE="500")
    assert verdicts["connections"] == "warn"


async def test_partitions_that_nobody_made(fresh_database: Database) -> None:
    said, verdicts = await examined(fresh_database, LANEWAY_PARTITIONS_AHEAD="40")
    assert (said.status, verdicts["partitions"]) == (0, "warn"), said.text
    with psycopg.connect(fresh_database.admin_dsn, autocommit=True) as connection:
        rows = connection.execute(
            "SELECT c.oid::regclass::text FROM pg_class AS c JOIN pg_inherits AS i"
            " ON i.inhrelid = c.oid WHERE i.inhparent = 'laneway.entries'::regclass"
            " AND pg_get_expr(c.relpartbound, c.oid) <> 'DEFAULT'"
        ).fetchall()
        for (name,) in rows:
            connection.execute(f"DROP TABLE {name}")  # pyright: ignore[reportArgumentType, reportCallIssue]
    said, verdicts = await examined(fresh_database)
    assert (said.status, verdicts["partitions"]) == (1, "fail")


async def test_a_dead_host_and_work_that_nobody_does(fleet: Fleet) -> None:
    api = await fleet.api()
    # Workers would put it away at once: there is none.
    dying = await fleet.host("worker", jobs=False)
    session = await fleet.session()
    await fleet.prompt(api, session, "echo: x")
    await fleet.sql("UPDATE laneway.open_operations SET due_at = due_at - 100000")
    await fleet.kill(dying)

    said, verdicts = await examined(fleet.database)
    assert said.status == 1
    assert verdicts["dead hosts"] in ("warn", "ok")  # its connection may take a moment to end
    assert verdicts["due work"] == "fail"
    assert "operation list" in said.text


async def test_no_workers_is_worse_with_work(fleet: Fleet) -> None:
    api = await fleet.api()
    _, verdicts = await examined(fleet.database)
    assert verdicts["workers"] == "warn"
    await fleet.prompt(api, await fleet.session(), "echo: x")
    _, verdicts = await examined(fleet.database)
    assert verdicts["workers"] == "fail"


async def test_a_silent_host(fleet: Fleet) -> None:
    await fleet.api(heartbeat_seconds=600)
    await fleet.sql("UPDATE laneway.hosts SET heartbeat_at = heartbeat_at - interval '1 minute'")
    _, verdicts = await examined(fleet.database)
    assert verdicts["silent hosts"] == "warn"


async def test_a_queue_of_another_version(fresh_database: Database) -> None:
    owner(fresh_database, "DROP FUNCTION public.procrastinate_finish_job_v1 CASCADE")
    said, verdicts = await examined(fresh_database)
    assert (said.status, verdicts["job queue"]) == (1, "fail")
    assert "procrastinate_finish_job_v1" in said.text


async def test_jobs_that_nobody_removed(fresh_database: Database) -> None:
    owner(
        fresh_database,
        "INSERT INTO public.procrastinate_jobs (queue_name, task_name, status)"
        " SELECT 'laneway', 'x', 'succeeded' FROM generate_series(1, 200)",
    )
    _, verdicts = await examined(fresh_database)
    assert verdicts["job queue"] == "warn"


async def test_what_a_sweep_would_find(fresh_database: Database) -> None:
    ids = Environment.system().ids
    owner(
        fresh_database,
        "INSERT INTO laneway.open_operations"
        " (operation_id, tenant_id, session_id, lane, kind, accepted_at, due_at)"
        " VALUES (%s, %s, %s, 'main', 'run', 0, 9000000000000)",
        ids.next(),
        ids.next(),
        ids.next(),
    )
    said, verdicts = await examined(fresh_database)
    assert (said.status, verdicts["sweep"]) == (1, "fail")
    assert "1 stray" in said.text


async def test_what_is_not_configured_is_said_in_a_sentence(fresh_database: Database) -> None:
    said = await command(fresh_database, "doctor", LANEWAY_PARTITION_PERIOD="year")
    assert said.status == 1
    assert "LANEWAY_PARTITION_PERIOD" in said.errors


async def test_a_pooler_belongs_before_one_of_the_addresses(
    fresh_database: Database, pooler: Pooler
) -> None:
    pooled = pooler.address(fresh_database.direct_dsn)
    said, verdicts = await examined(fresh_database, LANEWAY_DATABASE_URL=pooled)
    assert (said.status, verdicts["no pooler"]) == (0, "ok"), said.text
    assert "same database" not in verdicts
    said, verdicts = await examined(
        fresh_database, LANEWAY_DATABASE_URL=pooled, LANEWAY_DIRECT_DATABASE_URL=pooled
    )
    assert (said.status, verdicts["no pooler"]) == (1, "fail")
    assert "LANEWAY_DIRECT_DATABASE_URL" in said.text
