"""The Postgres that tests share: one server per test run, a database per test process, copies on demand.

Three ways to a server: `LANEWAY_TEST_DATABASE_URL` (a superuser's URL), a container of the image in
`LANEWAY_TEST_POSTGRES_IMAGE` (needs Docker and testcontainers), or else the embedded server.
`LANEWAY_TEST_POSTGRES_MAJOR` chooses its version.
"""

from __future__ import annotations

import fcntl
import importlib
import itertools
import json
import os
import secrets
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from storage_pg import migrate
from storage_pg.embedded import EmbeddedServer

OWNER = "laneway_owner"
APP = migrate.APP_ROLE
PASSWORD = "laneway-test"  # of roles in throw-away databases
_SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "256MB"}


@dataclass(frozen=True, slots=True)
class Database:
    """One migrated database and who may do what in it. `app_dsn` may lead through a pooler,
    `direct_dsn` is the same role's way past it."""

    name: str
    admin_dsn: str
    owner_dsn: str
    app_dsn: str
    direct_dsn: str


class Cluster:
    """A server, and the databases that one test process made on it."""

    def __init__(self, admin_dsn: str, run: str) -> None:
        self._admin = admin_dsn
        self._run = run
        self._names = itertools.count(1)
        self._made: list[str] = []
        self._worker = os.environ.get("PYTEST_XDIST_WORKER", "main")

    @property
    def template(self) -> str:
        """The migrated database that the others are copies of."""
        return f"laneway_template_{self._run}"

    def prepare(self) -> None:
        """Make the roles and the template; one process does this, before the others ask."""
        with psycopg.connect(self._admin, autocommit=True) as connection:
            for role in (OWNER, APP):
                found = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (role,))
                verb = "ALTER" if found.fetchone() else "CREATE"
                connection.execute(
                    sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(
                        sql.SQL(verb), sql.Identifier(role), sql.Literal(PASSWORD)
                    )
                )
        self._create(self.template, None)
        migrate.upgrade(self.database(self.template).owner_dsn)

    def new_database(self) -> Database:
        """A fresh copy of the template, dropped when this process is done."""
        name = f"laneway_{self._run}_{self._worker}_{next(self._names)}"
        self._create(name, self.template)
        self._made.append(name)
        return self.database(name)

    def empty_database(self) -> Database:
        """A database without any schema."""
        name = f"laneway_{self._run}_{self._worker}_{next(self._names)}"
        self._create(name, None)
        self._made.append(name)
        return self.database(name)

    def database(self, name: str) -> Database:
        """The addresses of a database."""
        return Database(
            name,
            _address(self._admin, name),
            _address(self._admin, name, OWNER),
            _address(self._admin, name, APP),
            _address(self._admin, name, APP),
        )

    @property
    def server_dsn(self) -> str:
        """The superuser's address of the server."""
        return self._admin

    def drop(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(
                sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
            )

    def dispose(self) -> None:
        """Drop what this process made."""
        for name in self._made:
            self.drop(name)
        self._made.clear()

    def _create(self, name: str, template: str | None) -> None:
        statement = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(OWNER), sql.Identifier(template or "template0")
        )
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(statement)


class SharedCluster:
    """The test run's server: the first process that needs it starts it, and stops it last of all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "postgres"
        self._folder.mkdir(exist_ok=True)
        self._users: int | None = None
        self._stop: Callable[[], None] | None = None
        self._cluster: Cluster | None = None

    def get(self) -> Cluster:
        """This process's handle."""
        if self._cluster is None:
            with _file_lock(self._folder / "start.lock"):
                self._users = os.open(self._folder / "users.lock", os.O_RDWR | os.O_CREAT)
                fcntl.flock(self._users, fcntl.LOCK_SH)
                self._cluster = self._join() or self._start()
        return self._cluster

    def close(self) -> None:
        """Drop this process's databases; the process that started the server waits for the others."""
        if self._cluster is None:
            return
        if os.environ.get("LANEWAY_TEST_DATABASE_URL"):
            self._cluster.dispose()  # this server outlives the run
        if self._users is not None:
            if self._stop is not None:
                fcntl.flock(self._users, fcntl.LOCK_EX)
            os.close(self._users)
        if self._stop is not None:
            self._stop()
        self._cluster = None

    def _join(self) -> Cluster | None:
        announced = self._folder / "server.json"
        if not announced.exists():
            return None
        found = json.loads(announced.read_text())
        return Cluster(found["admin"], found["run"])

    def _start(self) -> Cluster:
        admin, stop = _server(self._folder)
        cluster = Cluster(admin, secrets.token_hex(4))
        cluster.prepare()
        (self._folder / "server.json").write_text(
            json.dumps({"admin": admin, "run": cluster.template.removeprefix("laneway_template_")})
        )

        def end() -> None:
            (self._folder / "server.json").unlink()
            cluster.drop(cluster.template)
            stop()

        self._stop = end
        return cluster


def _server(folder: Path) -> tuple[str, Callable[[], None]]:
    given = os.environ.get("LANEWAY_TEST_DATABASE_URL")
    if given:
        return given, lambda: None
    image = os.environ.get("LANEWAY_TEST_POSTGRES_IMAGE")
    if image:
        containers = importlib.import_module("testcontainers.postgres")
        container = containers.PostgresContainer(image, driver=None)
        container.start()
        return container.get_connection_url(), container.stop
    major = int(os.environ.get("LANEWAY_TEST_POSTGRES_MAJOR", "18"))
    server = EmbeddedServer(folder / "server", major=major, settings=_SETTINGS).start()
    return server.dsn(), server.stop


def _address(dsn: str, database: str, role: str | None = None) -> str:
    parts = urlsplit(dsn)
    where = parts.netloc.rpartition("@")[2]
    who = parts.netloc.rpartition("@")[0] if role is None else f"{role}:{PASSWORD}"
    return urlunsplit(parts._replace(netloc=f"{who}@{where}", path=f"/{database}"))


@contextmanager
def _file_lock(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
