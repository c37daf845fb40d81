"""What operators' tests share: a scrape of a real process, and a command line on a real database."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from app.cli.main import cli
from tests.postgres import Database
from tests.workers.kit import SECRET
from workers.host import SessionHost


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one scrape, by name and labels."""

    samples: dict[tuple[str, frozenset[tuple[str, str]]], float]

    def __call__(self, name: str, **labels: str) -> float:
        return self.samples["laneway_" + name, frozenset(labels.items())]

    @property
    def names(self) -> set[str]:
        """The names of all series."""
        return {name for name, _ in self.samples}


def parse(text: str) -> Scrape:
    """What Prometheus understands of it."""
    return Scrape(
        {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    )


async def scrape(host: SessionHost) -> Scrape:
    """Ask a process for its metrics, as Prometheus does."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://127.0.0.1:{host._server.port}/metrics")
    assert answer.status_code == 200, answer.text
    return parse(answer.text)


@dataclass(frozen=True, slots=True)
class Said:
    """What a command printed, and how it ended."""

    status: int
    text: str
    errors: str

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The JSON lines."""
        return [json.loads(line) for line in self.text.splitlines()]


async def command(database: Database, *arguments: str, **environment: str) -> Said:
    """Run a command in a thread of its own."""
    settings = {
        "LANEWAY_DATABASE_URL": database.app_dsn,
        "LANEWAY_DIRECT_DATABASE_URL": database.direct_dsn,
        "LANEWAY_OWNER_DATABASE_URL": database.owner_dsn,
        "LANEWAY_CLUSTER_SECRET": SECRET,
        "LANEWAY_POOL_SIZE": "4",
        **environment,
    }
    result = await asyncio.to_thread(CliRunner().invoke, cli, list(arguments), env=settings)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return Said(result.exit_code, result.stdout, result.stderr)
