"""How commands speak: lines for people, or one JSON document a line for programs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, NoReturn, cast

import msgspec
import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]

_CHATTY = ("httpx", "httpx2", "httpcore", "procrastinate", "uvicorn", "alembic", "sse_starlette")

# What is for people and not the answer goes to standard error.
notes = Console(stderr=True, highlight=False)


def say(json: bool, document: Mapping[str, object], text: str) -> None:
    """Print the answer, as JSON or as text."""
    if json:
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    else:
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(json: bool, rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> None:
    """Print rows, as JSON lines or as a table of these columns."""
    if json:
        for row in rows:
            say(True, row, "")
        return
    shown = Table(*columns, box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*(_cell(row.get(column)) for column in columns))
    Console(highlight=False).print(shown)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case list() | tuple():
            items = cast("Sequence[object]", value)
            return ", ".join(str(item) for item in items)
        case _:
            return str(value)


def fail(message: str) -> NoReturn:
    """End with an error that the user can act upon."""
    notes.print(f"[red]error:[/red] {message}", soft_wrap=True)
    raise typer.Exit(1)


def log_to_stderr() -> None:
    """Log lines of this process, from the level in `LANEWAY_LOG_LEVEL` (INFO) upwards."""
    name = os.environ.get("LANEWAY_LOG_LEVEL", "INFO").upper()
    level = logging.getLevelNamesMapping().get(name, logging.INFO)
    logging.basicConfig(
        stream=sys.stderr,
        level=level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
