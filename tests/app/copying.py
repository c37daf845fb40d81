"""Forks, exports and imports as a client asks for them, and what they leave behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import httpx
import psycopg

from tests.app.kit import Tenant, World

GOLDEN = Path(__file__).parents[1] / "golden"
JSONL = {"Content-Type": "application/jsonl"}


async def exported(tenant: Tenant, session: str) -> bytes:
    answer = await tenant.client.get(f"/v1/sessions/{session}/export")
    assert answer.status_code == 200, answer.text
    return answer.content


async def take(tenant: Tenant, data: bytes, key: str | None = None, **query: str) -> httpx.Response:
    headers = JSONL if key is None else {**JSONL, "Idempotency-Key": key}
    return await tenant.client.post(
        "/v1/sessions/import", content=data, params=query, headers=headers
    )


async def fork(tenant: Tenant, session: str, key: str | None = None, **body: Any) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await tenant.client.post(f"/v1/sessions/{session}/fork", json=body, headers=headers)


async def forked(tenant: Tenant, session: str, **body: Any) -> str:
    answer = await fork(tenant, session, **body)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/sessions/{answer.json()['id']}"
    return answer.json()["id"]


async def talked(tenant: Tenant) -> str:
    """A session with two runs and a lane beside."""
    session = await tenant.session(name="talk", metadata={"team": "red"}, agent="helper")
    for text in ("one", "two"):
        await tenant.run(session, f"echo: {text}")
    first = (await tenant.entries(session))[0]["id"]
    made = await tenant.client.post(
        f"/v1/sessions/{session}/lanes", json={"name": "side", "at": first}
    )
    assert made.status_code == 201, made.text
    await tenant.run(session, "echo: beside", "side")
    return session


def spools() -> list[Path]:
    """What transfers of this process have put on the disk."""
    return list(Path(tempfile.gettempdir()).glob(f"laneway-{os.getpid()}-*"))


def copying(world: World) -> int:
    """Connections that copy."""
    with psycopg.connect(world.database.admin_dsn) as admin:
        row = admin.execute(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name = 'laneway-copy'"
        ).fetchone()
    assert row is not None
    return row[0]
