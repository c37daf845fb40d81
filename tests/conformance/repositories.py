"""How each embedded repository is made for the conformance suite."""

from __future__ import annotations

from pathlib import Path

from harness.environment import Environment
from harness.session.repo import SessionRepo
from harness.session.repo_files import JsonlSessions, SqliteSessions
from harness.session.repo_memory import MemorySessions
from harness.testing.conformance import Capabilities


class MemoryOnly:
    """One repository object is all there is."""

    name = "memory"
    capabilities = Capabilities()

    def __init__(self, folder: Path) -> None:
        self._repository = MemorySessions(Environment.system())

    def repository(self) -> SessionRepo:
        return self._repository


class JsonlFolder:
    """A folder of JSONL files."""

    name = "jsonl"
    capabilities = Capabilities(durable=True, multi_process_lease=True)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def repository(self) -> SessionRepo:
        return JsonlSessions(self._folder, Environment.system())


class SqliteFolder:
    """A folder of SQLite files."""

    name = "sqlite"
    capabilities = Capabilities(durable=True, multi_process_lease=True, physical_reclaim=True)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def repository(self) -> SessionRepo:
        return SqliteSessions(self._folder, Environment.system())
