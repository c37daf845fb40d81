"""Parameters that many routes share, and what is refused about them before anything is asked."""

from __future__ import annotations

import re
import uuid
from typing import Annotated

from fastapi import Header, Path, Query
from pydantic import AfterValidator

from app.http.problems import invalid, not_found
from harness.session.session import lane_name_problem

MAX_PAGE = 1_000
MAX_WAIT_SECONDS = 60.0
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?:$|[,;])", re.IGNORECASE)


def canonical_uuid(text: str) -> str | None:
    """The canonical form of a UUID, None for anything else."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        return None


def _id_of(code: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        found = canonical_uuid(text)
        if found is None:
            raise not_found(code, what)
        return found

    return AfterValidator(check)


def _lane(text: str) -> str:
    if lane_name_problem(text) is not None or not is_text(text):
        raise not_found("UnknownLane", "lane")
    return text


def is_text(text: str) -> bool:
    """Whether the database can hold it as text: neither NUL nor lone surrogates."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _query_text(name: str) -> AfterValidator:
    def check(text: str | None) -> str | None:
        if text is not None and not is_text(text):
            raise invalid(f"query.{name}", "neither NUL nor lone surrogates are allowed here")
        return text

    return AfterValidator(check)


def _query_uuid(name: str) -> AfterValidator:
    def check(text: str | None) -> str | None:
        found = None if text is None else canonical_uuid(text)
        if text is not None and found is None:
            raise invalid(f"query.{name}", "it is not a UUID")
        return found

    return AfterValidator(check)


def check_new_id(text: str | None) -> str | None:
    """The canonical form of an id for something new; raises `ValueError` unless it is a UUIDv7."""
    if text is None:
        return None
    found = canonical_uuid(text)
    if found is None or found[14] != "7":
        raise ValueError("it must be a version 7 UUID")
    return found


_UUID = {"format": "uuid"}
SessionId = Annotated[str, Path(json_schema_extra=_UUID), _id_of("SessionNotFound", "session")]
EntryId = Annotated[str, Path(json_schema_extra=_UUID), _id_of("EntryNotFound", "entry")]
QueuedId = Annotated[str, Path(json_schema_extra=_UUID), _id_of("EntryNotFound", "queued entry")]
OperationId = Annotated[
    str, Path(json_schema_extra=_UUID), _id_of("OperationNotFound", "operation")
]
Lane = Annotated[
    str,
    Path(description="The lane's name; `main` exists always."),
    AfterValidator(_lane),
]
CustomType = Annotated[
    str | None,
    Query(alias="customType", max_length=200, description="Only custom entries of this type."),
    _query_text("customType"),
]
AgentName = Annotated[str | None, Query(max_length=200), _query_text("agent")]
StartId = Annotated[
    str | None,
    Query(json_schema_extra=_UUID, description="Where to begin; the lane's leaf otherwise."),
    _query_uuid("start"),
]
StopAtId = Annotated[
    str | None,
    Query(alias="stopAtId", json_schema_extra=_UUID, description="The last entry to look at."),
    _query_uuid("stopAtId"),
]
NewId = Annotated[
    str | None,
    Query(json_schema_extra=_UUID, description="A UUIDv7 of the caller's own."),
    AfterValidator(check_new_id),
]
SessionFilter = Annotated[
    str | None, Query(alias="sessionId", json_schema_extra=_UUID), _query_uuid("sessionId")
]
LaneFilter = Annotated[str | None, Query(alias="lane", max_length=200), _query_text("lane")]
Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="Entries of one page.")]
CursorText = Annotated[
    str | None,
    Query(alias="cursor", max_length=400, description="`nextCursor` of the page before."),
]
WaitQuery = Annotated[
    float | None,
    Query(ge=0, le=MAX_WAIT_SECONDS, description="Seconds to wait for the operation's end."),
]
Prefer = Annotated[
    str | None, Header(description="`wait=30` waits up to 30 seconds for the outcome.")
]


def wait_of(prefer: str | None) -> float | None:
    """The seconds that a `Prefer` header asks to wait, at most a minute; other preferences are
    ignored, as RFC 7240 wants."""
    found = None if prefer is None else _WAIT.search(prefer)
    return None if found is None else min(float(found[1]), MAX_WAIT_SECONDS)
