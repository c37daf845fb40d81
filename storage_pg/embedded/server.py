"""Starts, watches and stops one embedded Postgres on one data directory."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import psycopg

from storage_pg.embedded.binaries import ServiceUser, bin_folder, service_user

Progress = Callable[[str], None]

_GUARD = Path(__file__).with_name("guard.py")
_START_SECONDS = 60.0
_LOG_LIMIT = 16 * 1024 * 1024
_SUPERUSER = "postgres"

# For a server that one machine shares with its clients; a caller's settings win.
_SETTINGS: dict[str, str] = {
    "max_connections": "200",
    # Each owned session is one advisory lock: room for about 50,000.
    "max_locks_per_transaction": "256",
    "shared_buffers": "128MB",
    # A killed client's locks are freed even while its query runs.
    "client_connection_check_interval": "1s",
    "jit": "off",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %a ",
}


class ServerFailed(RuntimeError):
    """The server did not start; the message ends with the last lines of its log."""


class DataDirectoryInUse(RuntimeError):
    """Another process runs a server on this data directory; stop it or use another directory."""


class EmbeddedServer:
    """One server, listening on a free port of 127.0.0.1, that lives as long as its owner.

    `root` holds `data/`, the log and the superuser's password; it is made when missing and can
    be started again later. When this process dies, however it dies, the server shuts down.
    Use as `with EmbeddedServer(root) as server` or `async with`; `progress` hears what happens.
    """

    def __init__(
        self,
        root: Path,
        *,
        major: int = 18,
        settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.root = root.absolute()
        self.data = self.root / "data"
        self.log = self.root / "postgres.log"
        self.port = 0
        self._major = major
        self._settings = {**_SETTINGS, **(settings or {})}
        self._progress = progress or _silent
        self._password = ""
        self._lock: int | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    # Lifecycle

    def start(self) -> EmbeddedServer:
        """Initialize the data directory if it is new and start; returns when queries are answered."""
        user = service_user()
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._take_lock()
        try:
            self._end_orphan()
            self._initialize(user)
            self._launch(user)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Shut down (clients are disconnected, data is safe) and wait for it. Idempotent."""
        guard, self._guard = self._guard, None
        if guard is not None:
            if guard.stdin is not None:
                guard.stdin.close()
            guard.wait()
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)

    def kill(self) -> None:
        """End the server like a power cut, for tests of what survives it. `start` goes on after."""
        pid = _postmaster_pid(self.data)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
        self.stop()

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._guard is not None and self._guard.poll() is None

    @property
    def pid(self) -> int | None:
        """Process id of the postmaster."""
        return _postmaster_pid(self.data)

    def __enter__(self) -> EmbeddedServer:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> EmbeddedServer:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)

    # Addresses

    def dsn(
        self, database: str = "postgres", user: str = _SUPERUSER, password: str | None = None
    ) -> str:
        """A connection URL; the superuser's password is filled in when none is given."""
        secret = self._password if password is None else password
        return f"postgresql://{quote(user)}:{quote(secret)}@127.0.0.1:{self.port}/{quote(database)}"

    # Steps of a start

    def _take_lock(self) -> None:
        lock = os.open(self.root / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(lock, 32).decode() or "another process"
            os.close(lock)
            raise DataDirectoryInUse(f"{self.root} is in use by process {holder}") from error
        os.ftruncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
        self._lock = lock

    def _end_orphan(self) -> None:
        """With the owner's lock ours, a server on this data has no owner: it is on its way out."""
        pid = _postmaster_pid(self.data)
        if pid is None:
            return
        if not _is_server_of(pid, self.data):
            # The machine restarted and the number now belongs to something else.
            (self.data / "postmaster.pid").unlink(missing_ok=True)
            return
        self._progress("waiting for the previous server to end")
        for number, seconds in (
            (signal.SIGINT, 20.0),
            (signal.SIGQUIT, 5.0),
            (signal.SIGKILL, 5.0),
        ):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline:
                if not _is_server_of(pid, self.data):
                    return
                time.sleep(0.02)
        raise ServerFailed(f"process {pid} still serves {self.data} and cannot be ended")

    def _initialize(self, user: ServiceUser) -> None:
        secret_file = self.root / "password"
        if (self.data / "PG_VERSION").exists() and secret_file.exists():
            self._major = int((self.data / "PG_VERSION").read_text())
            self._password = secret_file.read_text()
            return
        self._progress("initializing the database (once)")
        # A first start that was interrupted leaves half a cluster and no password file.
        shutil.rmtree(self.data, ignore_errors=True)
        self.data.mkdir(mode=0o700)
        user.owns(self.data)
        self._password = secrets.token_urlsafe(24)
        handed = self.root / "password.new"
        handed.write_text(self._password)
        handed.chmod(0o600)
        user.owns(handed)
        locale = (
            ["--locale=C.UTF-8", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
            if self._major >= 17
            else ["--locale=C"]
        )
        command = [
            str(bin_folder(self._major) / "initdb"),
            f"--pgdata={self.data}",
            f"--username={_SUPERUSER}",
            f"--pwfile={handed}",
            "--auth-host=scram-sha-256",
            "--auth-local=reject",
            "--encoding=UTF8",
            *locale,
        ]
        if self._settings.get("fsync") == "off":
            command.append("--no-sync")
        guard = self._spawn(command, user)
        code = guard.wait()
        if guard.stdin is not None:
            guard.stdin.close()
        if code != 0:
            raise ServerFailed(f"initdb failed ({code})\n{self._log_tail()}")
        os.chown(handed, os.geteuid(), os.getegid())
        handed.rename(secret_file)

    def _launch(self, user: ServiceUser) -> None:
        self._progress("starting Postgres")
        if self.log.exists() and self.log.stat().st_size > _LOG_LIMIT:
            self.log.unlink()
        for attempt in range(5):
            # Clients of a server that is started again look for it where it was.
            if self.port == 0 or attempt > 0:
                self.port = _free_port()
            command = [
                str(bin_folder(self._major) / "postgres"),
                "-D",
                str(self.data),
                "-c",
                "listen_addresses=127.0.0.1",
                "-c",
                f"port={self.port}",
                "-c",
                "unix_socket_directories=",
            ]
            for name, setting in self._settings.items():
                command += ["-c", f"{name}={setting}"]
            self._guard = self._spawn(command, user)
            if self._wait_ready():
                self._progress(f"Postgres {self._major} listens on 127.0.0.1:{self.port}")
                return
            self._progress("starting Postgres again")
        raise ServerFailed(f"Postgres did not start\n{self._log_tail()}")

    def _spawn(self, command: list[str], user: ServiceUser) -> subprocess.Popen[bytes]:
        plan = {
            "log": str(self.log),
            "uid": user.uid,
            "gid": user.gid,
            "keep_search": not (user.reaches(self.root) and user.reaches(Path(command[0]).parent)),
        }
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD), json.dumps(plan), *command],
            stdin=subprocess.PIPE,
            # A Ctrl-C in the terminal is for the owner, which ends the server after its own work.
            start_new_session=True,
        )

    def _wait_ready(self) -> bool:
        """True when queries are answered, False when the server ended (a port that was taken)."""
        assert self._guard is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._guard.poll() is not None:
                if self._guard.stdin is not None:
                    self._guard.stdin.close()
                self._guard = None
                return False
            if _postmaster_status(self.data) == "ready":
                with contextlib.suppress(psycopg.OperationalError):
                    psycopg.connect(self.dsn(), connect_timeout=5).close()
                    return True
            time.sleep(0.01)
        raise ServerFailed(
            f"Postgres is not ready after {_START_SECONDS:.0f} s\n{self._log_tail()}"
        )

    def _log_tail(self) -> str:
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])
        except FileNotFoundError:
            return "(no log)"


def _silent(_message: str) -> None:
    return None


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _pidfile(data: Path) -> list[str]:
    try:
        return (data / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _postmaster_pid(data: Path) -> int | None:
    lines = _pidfile(data)
    return int(lines[0]) if lines and lines[0].isdigit() else None


def _postmaster_status(data: Path) -> str | None:
    lines = _pidfile(data)
    return lines[7].strip() if len(lines) > 7 else None


def _is_server_of(pid: int, data: Path) -> bool:
    """Whether `pid` is alive and serves `data`. Without /proc, being alive has to do."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    working = Path(f"/proc/{pid}/cwd")
    if not Path("/proc/self").exists():
        return True
    try:
        return working.resolve(strict=True) == data.resolve()
    except OSError:
        return False
