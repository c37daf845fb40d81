"""A real pgbouncer before a test database: transaction mode, as a deployment would have it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, urlsplit, urlunsplit

from storage_pg.embedded import guard
from storage_pg.embedded.binaries import service_user
from tests.pooler_package import PoolerProgram
from tests.postgres import APP, OWNER, PASSWORD, Database

Mode = Literal["transaction", "session"]
_START_TRIES = 5


@dataclass(frozen=True, slots=True)
class PoolerSettings:
    """How it pools: per user and database so many connections to the server, `extra` lines as they are."""

    mode: Mode = "transaction"
    size: int = 8
    extra: tuple[str, ...] = ()


class Pooler:
    """One pgbouncer for every database of the server that `server_dsn` leads to.

    It refuses to run as root, so it runs as the embedded server's user, and below the same guard:
    it ends with this process, however that ends.
    """

    def __init__(
        self,
        program: PoolerProgram,
        folder: Path,
        server_dsn: str,
        settings: PoolerSettings | None = None,
    ) -> None:
        self.version = program.version
        self._program = program
        self._folder = folder
        self._server = urlsplit(server_dsn)
        self._settings = settings or PoolerSettings()
        self._guard: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> Pooler:
        """Start it; returns when it accepts connections. A second start goes where it was before."""
        for _ in range(_START_TRIES):
            self.port = self.port or _free_port()
            self._launch()
            if self._accepts():
                return self
        raise AssertionError(f"pgbouncer did not start:\n{self._log.read_text()[-2_000:]}")

    def stop(self) -> None:
        """End it at once: it has nothing to put in order. Idempotent."""
        running, self._guard = self._guard, None
        if running is None:
            return
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
            os.kill(int(self._pid_file.read_text()), signal.SIGKILL)
        assert running.stdin is not None
        running.stdin.close()
        running.wait()
        self._pid_file.unlink(missing_ok=True)

    def through(self, database: Database) -> Database:
        """The same database, with this pooler on the way of everything but the direct address."""
        return replace(database, app_dsn=self.address(database.app_dsn))

    def address(self, dsn: str) -> str:
        """An address of the server's, through this pooler."""
        parts = urlsplit(dsn)
        who = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{who}@127.0.0.1:{self.port}"))

    @property
    def _log(self) -> Path:
        return self._folder / "pgbouncer.log"

    @property
    def _pid_file(self) -> Path:
        return self._folder / "run" / "pid"

    def _launch(self) -> None:
        user = service_user()
        run = self._folder / "run"
        run.mkdir(parents=True, exist_ok=True)
        users = run / "users.txt"
        users.write_text("".join(f'"{role}" "{PASSWORD}"\n' for role in (APP, OWNER)))
        configuration = run / "pgbouncer.ini"
        configuration.write_text("\n".join(self._lines(users)))
        for path in (run, users, configuration):
            user.owns(path)
        plan = {
            "log": str(self._log),
            "uid": user.uid,
            "gid": user.gid,
            "keep_search": not (user.reaches(run) and user.reaches(self._program.path.parent)),
        }
        command = [str(self._program.path), str(configuration)]
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, json.dumps(plan), *command],
            stdin=subprocess.PIPE,
            env=self._program.environment,
            start_new_session=True,
        )

    def _lines(self, users: Path) -> Iterable[str]:
        server: SplitResult = self._server
        yield "[databases]"
        yield f"* = host={server.hostname} port={server.port}"
        yield "[pgbouncer]"
        yield "listen_addr = 127.0.0.1"
        yield f"listen_port = {self.port}"
        yield "unix_socket_dir ="
        yield "auth_type = scram-sha-256"
        yield f"auth_file = {users}"
        yield f"pidfile = {self._pid_file}"
        yield f"pool_mode = {self._settings.mode}"
        yield f"default_pool_size = {self._settings.size}"
        yield "max_client_conn = 500"
        yield "log_connections = 0"
        yield "log_disconnections = 0"
        # After a restart of the server it tries again soon, not after fifteen seconds.
        yield "server_login_retry = 1"
        yield from self._settings.extra
        yield ""

    def _accepts(self) -> bool:
        """True when it listens, False when it ended (a port that was taken)."""
        assert self._guard is not None
        while self._guard.poll() is None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1),
            ):
                return True
            time.sleep(0.01)
        self.stop()
        self.port = 0
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
