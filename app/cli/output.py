"""How commands speak: lines for people, or one JSON document a line for programs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, NoReturn, cast

import msgspec
import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one document a line.")]

_ID = 36
_WIDE = 1_000

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
    shown = Table(box=None, pad_edge=False)
    for column in columns:
        # An id is there to be copied: it is never cut short.
        is_id = column == "id" or column.endswith("Id")
        shown.add_column(column, overflow="fold", no_wrap=is_id, min_width=_ID if is_id else None)
    for row in rows:
        shown.add_row(*(_cell(row.get(column)) for column in columns))
    # Into a file or a pipe a row goes on one line.
    console = Console(highlight=False)
    console.print(shown, width=None if console.is_terminal else _WIDE)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case list() | tuple():
            items = cast("Sequence[object]", value)
            return ", ".join(str(item) for item in items)
        case _:
            return str(value)


def when(instant: int | None) -> str | None:
    """An instant (Unix ms) in UTC."""
    if instant is None:
        return None
    return datetime.fromtimestamp(instant / 1000, UTC).isoformat(timespec="seconds")


def lasting(milliseconds: float) -> str:
    """A stretch of time in its two largest units."""
    seconds = round(abs(milliseconds) / 1000)
    parts = [(seconds // 86_400, "d"), (seconds // 3_600 % 24, "h"), (seconds // 60 % 60, "m")]
    shown = [f"{number}{unit}" for number, unit in [*parts, (seconds % 60, "s")] if number]
    return ("-" if milliseconds < 0 and seconds else "") + (" ".join(shown[:2]) or "0s")


def fail(message: str) -> NoReturn:
    """End with an error that the user can act upon."""
    notes.print(f"[red]error:[/red] {message}", soft_wrap=True)
    raise typer.Exit(1)


def log_to_stderr() -> None:
    """Log lines of this process, from the level in `LANEWAY_LOG_LEVEL` (INFO) upwards: JSON, or text
    on a terminal; `LANEWAY_LOG` (`json` or `text`) says otherwise."""
    from workers.logs import configure

    name = os.environ.get("LANEWAY_LOG_LEVEL", "INFO").upper()
    level = logging.getLevelNamesMapping().get(name, logging.INFO)
    match os.environ.get("LANEWAY_LOG", "").lower():
        case "json":
            configure(level, "json")
        case "text":
            configure(level, "text")
        case _:
            configure(level, "text" if sys.stderr.isatty() else "json")
