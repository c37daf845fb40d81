"""`laneway doctor`: says what is wrong with a deployment, and what to do about it."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.text import Text

from app.cli.configuration import settings
from app.cli.output import Json, say
from harness.environment import Environment

if TYPE_CHECKING:
    from app.doctor.findings import Finding

_MARKS = {"ok": "green", "warn": "yellow", "fail": "red", "skipped": "dim"}


def doctor(json: Json = False) -> None:
    """Check addresses, server, schema, roles, partitions, hosts and open work. Changes nothing. Ends
    with 1 when something fails; a warning is no failure."""
    from app.doctor.examination import examine

    found = settings(joins_fleet=False)
    console = Console(highlight=False)
    failed = False

    async def run() -> None:
        nonlocal failed
        async for finding in examine(found, Environment.system().clock):
            failed = failed or finding.verdict == "fail"
            if json:
                say(True, asdict(finding), "")
            else:
                _show(console, finding)

    asyncio.run(run())
    if failed:
        raise typer.Exit(1)


def _show(console: Console, finding: Finding) -> None:
    verdict = Text(f"{finding.verdict:<8}", style=_MARKS[finding.verdict])
    console.print(verdict, Text(f"{finding.check:<16} {finding.seen}"), soft_wrap=True)
    if finding.advice:
        console.print(Text(f"{'':<26}{finding.advice}"), soft_wrap=True)
