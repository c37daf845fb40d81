"""Behind a real pgbouncer in transaction mode: commits and reads work, leases are refused."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from harness.context import BACKGROUND
from harness.storage.address import value
from harness.storage.protocol import BranchScan
from harness.storage.writes import insert_entry, set_value
from harness.testing.conformance.samples import Samples
from storage_pg.connect import open_pool
from storage_pg.lease import HostIdentity, HostLease
from storage_pg.pooler import PoolerOnDirectUrl, refuse_pooler
from storage_pg.sessions import PostgresSessions
from storage_pg.writer import SharedWriter
from tests.postgres import Database
from tests.storage_pg.kit import Kit

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
pytestmark = pytest.mark.skipif(PGBOUNCER is None, reason="no pgbouncer on this machine")


def start(folder: Path, database: Database, mode: str) -> tuple[subprocess.Popen[bytes], str]:
    assert PGBOUNCER is not None
    target = urlsplit(database.app_dsn)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder.mkdir()
    (folder / "users.txt").write_text(f'"{target.username}" "{target.password}"\n')
    (folder / "pgbouncer.ini").write_text(
        f"""
[databases]
{database.name} = host={target.hostname} port={target.port} dbname={database.name}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = plain
auth_file = {folder / "users.txt"}
pool_mode = {mode}
default_pool_size = 4
ignore_startup_parameters = extra_float_digits
"""
    )
    command = [PGBOUNCER, str(folder / "pgbouncer.ini")]
    if os.geteuid() == 0:
        folder.chmod(0o755)
        for parent in folder.parents:
            if parent == parent.parent or parent == Path("/tmp"):
                break
            parent.chmod(parent.stat().st_mode | 0o011)
        command[1:1] = ["-u", "nobody"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert process.poll() is None, "pgbouncer ended"
            time.sleep(0.02)
    where = f"{target.username}:{target.password}@127.0.0.1:{port}/{database.name}"
    return process, f"postgresql://{where}"


@pytest.fixture(params=["transaction"])
def pooled_dsn(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[str]:
    process, dsn = start(tmp_path / "pgbouncer", database, request.param)
    yield dsn
    process.terminate()
    process.wait()


async def test_it_is_refused_as_the_direct_address(pooled_dsn: str, kit: Kit) -> None:
    lease = HostLease(pooled_dsn, HostIdentity("x", "worker"), kit.environment.ids)
    with pytest.raises(PoolerOnDirectUrl, match="LANEWAY_DIRECT_DATABASE_URL"):
        await lease.start()


@pytest.mark.parametrize("pooled_dsn", ["session"], indirect=True)
async def test_session_mode_is_fine(pooled_dsn: str) -> None:
    await refuse_pooler(pooled_dsn)


async def test_the_database_itself_is_fine(kit: Kit) -> None:
    await refuse_pooler(kit.database.app_dsn)


async def test_commits_and_reads_pass_through(pooled_dsn: str, kit: Kit) -> None:
    samples = Samples(3)
    writer = SharedWriter(pooled_dsn)
    async with open_pool(pooled_dsn) as pool:
        sessions = PostgresSessions(pool, writer, kit.environment, lease=kit.lease)
        storages = [
            (await sessions.open(kit.tenant, (await sessions.create(kit.tenant)).id)).storage
            for _ in range(6)
        ]
        for storage in storages:
            tree = samples.chain(None, 20)
            for entry in tree:
                await storage.commit(
                    [insert_entry(entry), set_value(value(str, "app.leaf"), entry.id)], BACKGROUND
                )
            branch = await storage.scan_branch(BranchScan(start=tree[-1].id), BACKGROUND)
            assert [entry.id for entry in reversed(branch)] == [entry.id for entry in tree]
            stored = await storage.get_value(value(str, "app.leaf"), BACKGROUND)
            assert stored is not None
            assert stored.value == tree[-1].id
        async with sessions.snapshot(kit.tenant, (await sessions.create(kit.tenant)).id) as reader:
            assert (await reader.get_stats(BACKGROUND)).message_count == 0
        for storage in storages:
            await storage.close(BACKGROUND)
    await writer.close()
