"""Log lines: JSON with the ids of what they are about, or text for a terminal; no content, no secrets (design §13).

What an exception says may quote a prompt, an argument or a row. So of exceptions only the type and
the frames are shown, and what they say only where the text is ours or the database's first line.
"""

from __future__ import annotations

import json
import logging
import re
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal, TextIO, TypeAlias

import psycopg
from procrastinate.exceptions import ConnectorException

from harness.errors import HarnessFault, StorageError

Style: TypeAlias = Literal["json", "text"]

# The names of ids, in the order in which they are shown.
IDS = ("request", "tenant", "session", "lane", "operation")

_NOTHING: Mapping[str, str] = MappingProxyType({})
_ABOUT: ContextVar[Mapping[str, str]] = ContextVar("laneway_log_ids", default=_NOTHING)

_OURS = ("app", "workers", "storage_pg", "migrations", "harness")
_CHATTY = ("httpx", "httpx2", "httpcore", "procrastinate", "uvicorn", "alembic", "sse_starlette")
_LONGEST = 300

_SECRETS = (
    (re.compile(r"lw_[0-9A-Za-z]+_[0-9A-Za-z_-]+"), "lw_[secret]"),
    (re.compile(r"(://[^:/@\s]*):[^@\s]+@"), r"\1:[secret]@"),
    (re.compile(r"(?i)\b(password|secret|token|api_?key)(\s*[=:]\s*)\S+"), r"\1\2[secret]"),
    (re.compile(r"(?i)\bbearer\s+\S+"), "Bearer [secret]"),
)


@contextmanager
def about(**ids: str | None) -> Generator[None]:
    """Lines logged inside are about these ids too; None says nothing of one."""
    before = _ABOUT.set(_added(_ABOUT.get(), ids))
    try:
        yield
    finally:
        _ABOUT.reset(before)


def note(**ids: str | None) -> None:
    """The rest of what this task logs is about these ids too."""
    _ABOUT.set(_added(_ABOUT.get(), ids))


def only_about(**ids: str | None) -> None:
    """The rest of what this task logs is about these ids and no others: for a task that outlives
    whoever started it."""
    _ABOUT.set(_added(_NOTHING, ids))


def _added(known: Mapping[str, str], ids: Mapping[str, str | None]) -> Mapping[str, str]:
    return {**known, **{name: value for name, value in ids.items() if value is not None}}


def configure(level: int, style: Style, stream: TextIO | None = None) -> None:
    """Have this process log to `stream` (standard error), from a level upwards; libraries from
    WARNING. Whoever configured logging before keeps it as it is."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if style == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[handler])
    for chatty in _CHATTY:
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))


def describe(error: BaseException) -> str:
    """What may be said of an exception."""
    name = type(error).__name__
    match error:
        case StorageError() | OSError() | psycopg.Error() | ConnectorException():
            said, *_ = str(error).splitlines() or [""]
            return f"{name}: {said[:_LONGEST]}" if said else name
        case HarnessFault(cause=BaseException() as cause):
            return f"{name}: {describe(cause)}"
        case _:
            cause = error.__cause__
            return name if cause is None else f"{name}: {describe(cause)}"


class _Lines(logging.Formatter):
    def said(self, record: logging.LogRecord) -> str:
        """The message without what it must not contain."""
        arguments = record.args
        if isinstance(arguments, tuple):
            arguments = tuple(
                describe(each) if isinstance(each, BaseException) else each for each in arguments
            )
        text = str(record.msg) % arguments if arguments else str(record.msg)
        if record.name.partition(".")[0] not in _OURS:
            # A library's line may go on with the repr of what it was given.
            text = text.partition("\n")[0]
        return redact(text)

    def instant(self, record: logging.LogRecord) -> str:
        """When, in UTC."""
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonLines(_Lines):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        ids = _ABOUT.get()
        line: dict[str, object] = {
            "time": self.instant(record),
            "level": record.levelname,
            "logger": record.name,
            "message": self.said(record),
        }
        line.update({name: ids[name] for name in IDS if name in ids})
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = redact(describe(record.exc_info[1]))
            line["stack"] = _frames(record.exc_info[1])
        return json.dumps(line, ensure_ascii=False)


class TextLines(_Lines):
    """A line for people, and the frames of an exception below it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        ids = _ABOUT.get()
        known = " ".join(f"{name}={ids[name]}" for name in IDS if name in ids)
        head = f"{self.instant(record)} {record.levelname} {record.name}: {self.said(record)}"
        lines = [f"{head} [{known}]" if known else head]
        if record.exc_info and record.exc_info[1] is not None:
            lines += [f"    {frame}" for frame in _frames(record.exc_info[1])]
            lines.append(f"  {redact(describe(record.exc_info[1]))}")
        return "\n".join(lines)


def redact(text: str) -> str:
    """The text without keys and passwords."""
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


def _frames(error: BaseException) -> list[str]:
    """Where it was raised, what caused it first; no values and no source."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    found = [] if before is None else [*_frames(before), f"then {type(error).__name__}:"]
    return found + [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
