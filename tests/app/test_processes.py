"""`laneway` in real processes: dev and what survives it, drains, and the commands on the catalogue."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from app.cli.main import cli
from app.client import StreamEvent, read_events
from tests.app.kit import SECRET
from tests.postgres import Database

pytestmark = pytest.mark.timeout(400)


@asynccontextmanager
async def laneway(
    *arguments: str, environment: dict[str, str] | None = None
) -> AsyncGenerator[tuple[Process, dict[str, Any]]]:
    """A running `laneway` command and the line it printed when it was ready."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "app.cli.main",
        *arguments,
        "--json",
        stdout=PIPE,
        env={**os.environ, "LANEWAY_LOG_LEVEL": "WARNING", **(environment or {})},
    )
    assert process.stdout is not None
    try:
        line = await process.stdout.readline()
        assert line, "it did not start"
        yield process, json.loads(line)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def client_of(ready: dict[str, Any]) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {ready['apiKey']}"}
    return httpx.AsyncClient(base_url=ready["url"], headers=headers, timeout=60)


async def submit(client: httpx.AsyncClient, session: str, prompt: str) -> str:
    answer = await client.post(
        f"/v1/sessions/{session}/lanes/main/operations", json={"kind": "prompt", "prompt": prompt}
    )
    assert answer.status_code == 202, answer.text
    return answer.json()["operationId"]


async def outcome(client: httpx.AsyncClient, operation: str) -> str:
    answer = await client.get(f"/v1/operations/{operation}?wait=60")
    assert answer.status_code == 200, answer.text
    return answer.json()["outcome"]


async def gone(pid: int) -> None:
    """Return when there is no such process; the test's own time limit is the only one."""
    while psutil.pid_exists(pid):  # noqa: ASYNC110  # no child of ours: nothing to wait on
        await asyncio.sleep(0.02)


def all_pids(ready: dict[str, Any]) -> list[int]:
    pids = ready["pids"]
    return [pids["postgres"], pids["api"], *pids["workers"]]


async def refuse_another(arguments: tuple[str, ...]) -> None:
    """Try to start the same on the same data a second time."""
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "app.cli.main", *arguments, stdout=PIPE, stderr=PIPE
    )
    _, said = await other.communicate()
    assert other.returncode == 1
    assert "is in use by process" in said.decode()


async def test_dev_goes_on_with_what_was_open_when_it_is_started_again(tmp_path: Path):
    arguments = ("dev", "--port", "0", "--data-dir", str(tmp_path / "data"), "--workers", "1")
    slow = "script: " + json.dumps([{"text": "a b c d e f g h i j", "delay": 0.5}])
    # The first drain is shorter than the answer.
    short = {"LANEWAY_DRAIN_SECONDS": "1"}
    async with laneway(*arguments, environment=short) as (process, first):
        assert set(first) == {"url", "apiKey", "tenantId", "pids"}
        async with client_of(first) as client:
            session = (await client.post("/v1/sessions", json={"name": "kept"})).json()["id"]
            assert await outcome(client, await submit(client, session, "echo: x")) == "completed"
            # A killed worker is started again, and another one answers.
            killed = first["pids"]["workers"][0]
            os.kill(killed, signal.SIGKILL)
            assert await outcome(client, await submit(client, session, "echo: y")) == "completed"
            await refuse_another(arguments)
            open_operation = await submit(client, session, slow)
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
        for pid in all_pids(first):
            await gone(pid)
    async with laneway(*arguments) as (process, second):
        assert (second["apiKey"], second["tenantId"]) == (first["apiKey"], first["tenantId"])
        async with client_of(second) as client:
            assert await outcome(client, open_operation) == "completed"
            assert (await client.get(f"/v1/sessions/{session}")).json()["name"] == "kept"
            entries = (await client.get(f"/v1/sessions/{session}/entries")).json()["data"]
            assert [entry["message"]["role"] for entry in entries[:4]] == ["user", "assistant"] * 2
        # Killed, it takes everything with it.
        process.kill()
        await process.wait()
        for pid in all_pids(second):
            await gone(pid)


async def test_an_api_with_idle_watchers_ends_when_it_is_told_to(database: Database):
    environment = {
        "LANEWAY_DATABASE_URL": database.app_dsn,
        "LANEWAY_CLUSTER_SECRET": SECRET,
        "LANEWAY_DRAIN_SECONDS": "60",
    }
    name = f"watchers {os.getpid()}"
    key = await asyncio.to_thread(new_key, database, name)
    async with laneway("api", "--port", "0", environment=environment) as (process, ready):
        async with client_of({**ready, "apiKey": key}) as client:
            session = (await client.post("/v1/sessions", json={})).json()["id"]
            watching = asyncio.Event()
            waiting = 3

            async def watch() -> list[StreamEvent]:
                nonlocal waiting
                found: list[StreamEvent] = []
                async for event in read_events(client, f"/v1/sessions/{session}/lanes/main/events"):
                    found.append(event)
                    if len(found) == 1:
                        waiting -= 1
                        if waiting == 0:
                            watching.set()
                return found

            watchers = [asyncio.create_task(watch()) for _ in range(waiting)]
            await watching.wait()
            process.send_signal(signal.SIGTERM)
            for found in await asyncio.gather(*watchers):
                assert [event.name for event in found] == ["snapshot", "end"]
                assert found[1].data["reason"] == "draining"
        assert await process.wait() == 0


def new_key(database: Database, tenant: str) -> str:
    made = run(database, "tenant", "create", tenant)
    return run(database, "key", "create", "--tenant", made["id"])["key"]


def run(database: Database, *arguments: str) -> Any:
    """What a command printed, as JSON; a list when it printed several lines."""
    environment = {"LANEWAY_DATABASE_URL": database.app_dsn}
    result = CliRunner().invoke(cli, [*arguments, "--json"], env=environment)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    return lines[0] if len(lines) == 1 else lines


def refused(database: Database, *arguments: str) -> str:
    environment = {"LANEWAY_DATABASE_URL": database.app_dsn}
    result = CliRunner().invoke(cli, list(arguments), env=environment)
    assert result.exit_code == 1
    return result.output


def test_tenants_and_keys_are_made_listed_and_revoked(fresh_database: Database):
    tenant = run(fresh_database, "tenant", "create", "acme")
    assert run(fresh_database, "tenant", "list")["name"] == "acme"
    assert "acme" in refused(fresh_database, "tenant", "create", "acme")
    key = run(fresh_database, "key", "create", "--tenant", "acme", "--days", "3")
    assert key["key"].startswith("lw_")
    assert key["scopes"] == ["sessions:read", "sessions:write", "usage:read"]
    assert key["tenantId"] == tenant["id"]
    listed = run(fresh_database, "key", "list", "--tenant", tenant["id"])
    assert (listed["id"], listed["revoked"]) == (key["id"], None)
    assert key["key"] not in json.dumps(listed)
    assert run(fresh_database, "key", "revoke", key["id"], "--tenant", "acme")["revoked"]
    assert run(fresh_database, "key", "list", "--tenant", "acme")["revoked"] is not None
    assert key["id"] in refused(fresh_database, "key", "revoke", key["id"], "--tenant", "acme")
    assert "nobody" in refused(fresh_database, "key", "create", "--tenant", "nobody")
    assert "root" in refused(fresh_database, "key", "create", "--tenant", "acme", "--scope", "root")


def test_a_schema_is_checked_and_migrated(fresh_database: Database):
    environment = {
        "LANEWAY_DATABASE_URL": fresh_database.app_dsn,
        "LANEWAY_OWNER_DATABASE_URL": fresh_database.owner_dsn,
    }
    for arguments in (["--check"], ["--before"], ["--after"], []):
        result = CliRunner().invoke(cli, ["migrate", *arguments, "--json"], env=environment)
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["revision"]
    result = CliRunner().invoke(cli, ["migrate", "--before", "--after"], env=environment)
    assert result.exit_code == 1
    assert "exclude each other" in result.output


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LANEWAY_DATABASE_URL", raising=False)
    for arguments in (["api"], ["worker"], ["migrate"], ["tenant", "list"]):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 1
        assert "LANEWAY_DATABASE_URL" in result.output
