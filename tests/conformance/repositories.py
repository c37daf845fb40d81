"""How each repository is made for the conformance suite."""

from __future__ import annotations

from pathlib import Path

from harness.environment import Environment
from harness.session.repo import SessionRepo
from harness.session.repo_files import JsonlSessions, SqliteSessions
from harness.session.repo_memory import MemorySessions
from harness.testing.conformance import Capabilities
from storage_pg.copies import PostgresCopies
from storage_pg.repository import PostgresRepository
from tests.storage_pg.kit import Kit

ENVIRONMENT = Environment.system()


def _plain_name() -> str:
    return f"session-1.{ENVIRONMENT.ids.next()}"


class MemoryOnly:
    """One repository object is all there is."""

    name = "memory"
    capabilities = Capabilities(any_metadata=True)

    def __init__(self, folder: Path) -> None:
        self._repository = MemorySessions(ENVIRONMENT)

    def new_id(self) -> str:
        return _plain_name()

    def repository(self) -> SessionRepo:
        return self._repository


class JsonlFolder:
    """A folder of JSONL files."""

    name = "jsonl"
    capabilities = Capabilities(durable=True, multi_process_lease=True, any_metadata=True)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_id(self) -> str:
        return _plain_name()

    def repository(self) -> SessionRepo:
        return JsonlSessions(self._folder, ENVIRONMENT)


class SqliteFolder:
    """A folder of SQLite files."""

    name = "sqlite"
    capabilities = Capabilities(
        durable=True, multi_process_lease=True, physical_reclaim=True, any_metadata=True
    )

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def new_id(self) -> str:
        return _plain_name()

    def repository(self) -> SessionRepo:
        return SqliteSessions(self._folder, ENVIRONMENT)


class PostgresTenant:
    """A tenant's sessions, seen by two hosts in turn."""

    name = "postgres"
    capabilities = Capabilities(durable=True, multi_process_lease=True)

    def __init__(self, hosts: list[Kit]) -> None:
        self._tenant = hosts[0].tenant
        self._hosts = hosts
        self._views = 0

    def new_id(self) -> str:
        return ENVIRONMENT.ids.next()

    def repository(self) -> SessionRepo:
        kit = self._hosts[self._views % len(self._hosts)]
        self._views += 1
        copies = PostgresCopies(kit.database.app_dsn, self._tenant, kit.environment, kit.sessions)
        return PostgresRepository(kit.pool, self._tenant, kit.environment, kit.sessions, copies)
