"""The embedded server lives exactly as long as its owner, and its data longer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psycopg
import pytest

from storage_pg.embedded import (
    DataDirectoryInUse,
    EmbeddedServer,
    EmbeddedUnavailable,
    guard,
)

FAST = {"fsync": "off"}
NOBODY = 65534

OWNER = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from storage_pg.embedded import EmbeddedServer
    server = EmbeddedServer(Path(sys.argv[1]), settings={"fsync": "off"}).start()
    print(server.pid, flush=True)
    time.sleep(600)
    """
)


def start_owner(root: Path, **options: object) -> tuple[subprocess.Popen[str], int]:
    """A process that owns a server, and the server's process id."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(root)],
        stdout=subprocess.PIPE,
        text=True,
        **options,  # pyright: ignore[reportArgumentType, reportCallIssue]
    )
    assert owner.stdout is not None
    return owner, int(owner.stdout.readline())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_gone(pid: int) -> None:
    while alive(pid):
        time.sleep(0.02)


def guard_of(postmaster: int) -> int:
    status = Path(f"/proc/{postmaster}/status").read_text()
    return int(status.partition("PPid:")[2].split()[0])


@pytest.mark.parametrize("major", [18, 16])
def test_data_and_settings_survive_a_restart(tmp_path: Path, major: int) -> None:
    heard: list[str] = []
    settings = {**FAST, "work_mem": "5MB"}
    with (
        EmbeddedServer(tmp_path, major=major, settings=settings, progress=heard.append) as server,
        psycopg.connect(server.dsn()) as connection,
    ):
        assert connection.info.server_version // 10_000 == major
        assert connection.execute("SHOW work_mem").fetchone() == ("5MB",)
        assert connection.execute("SHOW fsync").fetchone() == ("off",)
        connection.execute("CREATE TABLE kept (n integer)")
    assert any("initializing" in line for line in heard)
    # The version of existing data wins over the one asked for.
    with (
        EmbeddedServer(tmp_path, settings=FAST) as server,
        psycopg.connect(server.dsn()) as connection,
    ):
        assert connection.info.server_version // 10_000 == major
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_it_answers_only_to_the_password(tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path, settings=FAST) as server,
        pytest.raises(psycopg.OperationalError, match="password"),
    ):
        psycopg.connect(server.dsn(password="wrong"))


def test_a_killed_owner_takes_the_server_along(tmp_path: Path) -> None:
    owner, postmaster = start_owner(tmp_path)
    owner.kill()
    owner.wait()
    assert owner.stdout is not None
    owner.stdout.close()
    wait_gone(postmaster)
    with EmbeddedServer(tmp_path, settings=FAST) as server:
        assert server.running


def test_the_next_owner_waits_for_the_last_ones_server(tmp_path: Path) -> None:
    owner, _ = start_owner(tmp_path)
    owner.kill()
    owner.wait()
    assert owner.stdout is not None
    owner.stdout.close()
    # No pause: the old server is still on its way out.
    with EmbeddedServer(tmp_path, settings=FAST) as server:
        psycopg.connect(server.dsn()).close()


def test_a_killed_guard_takes_the_server_along(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, settings=FAST).start()
    postmaster = server.pid
    assert postmaster is not None
    os.kill(guard_of(postmaster), signal.SIGKILL)
    wait_gone(postmaster)
    server.stop()
    assert not server.running


def test_a_second_owner_is_refused_by_name(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=FAST) as first:
        with pytest.raises(DataDirectoryInUse, match=str(os.getpid())):
            EmbeddedServer(tmp_path).start()
        psycopg.connect(first.dsn()).close()


def test_a_stale_pid_file_is_no_obstacle(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path, settings=FAST):
        pass
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        # As after a crash of the machine, when the number belongs to somebody else now.
        lines = [str(stranger.pid), str(tmp_path / "data"), "1", "5432", "", "127.0.0.1", "0 0", ""]
        (tmp_path / "data" / "postmaster.pid").write_text("\n".join(lines))
        with EmbeddedServer(tmp_path, settings=FAST) as server:
            psycopg.connect(server.dsn()).close()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_an_interrupted_initialization_is_begun_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "PG_VERSION").write_text("18\n")
    with EmbeddedServer(tmp_path, settings=FAST) as server:
        psycopg.connect(server.dsn()).close()


def test_committed_data_survives_a_power_cut(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        with psycopg.connect(server.dsn()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
        server.kill()
        assert not server.running
        server.start()
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT n FROM kept").fetchone() == (1,)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_can_run_it() -> None:
    # Below /tmp itself: pytest's own folders are closed to others.
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, NOBODY, NOBODY)
        # The interpreter may lie below root's home, which only the right to search reaches.
        owner, postmaster = start_owner(
            Path(folder) / "data", preexec_fn=lambda: guard._become(NOBODY, NOBODY, True)
        )
        assert Path(f"/proc/{postmaster}").stat().st_uid == NOBODY
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()
        wait_gone(postmaster)


@pytest.mark.skipif(os.geteuid() != 0, reason="the server drops rights only when it has them")
def test_root_runs_it_as_somebody_else_below_a_closed_directory(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedServer(closed / "data", settings=FAST) as server:
        assert server.pid is not None
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        assert closed.stat().st_mode & 0o777 == 0o700


def test_an_unknown_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedUnavailable, match="17"):
        EmbeddedServer(tmp_path, major=17).start()
