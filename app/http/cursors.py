"""Cursors of pages: opaque to clients, and refused when they are not ours."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from app.http.problems import Problem
from harness.search.service import Place
from harness.storage.protocol import SeqOrder
from storage_pg.catalog import Cursor

T = TypeVar("T")

_LARGEST = 2**63 - 1
# Far above any rank, and what the database's own numbers can hold.
_HIGHEST_SCORE = 1e30


def instant_cursor(instant: int, row_id: str) -> str:
    """Where a page of rows ordered by time and id ended."""
    return _pack([instant, row_id])


def parse_instant_cursor(text: str | None) -> Cursor | None:
    """The place that the cursor names; raises `Problem` for one that is not ours."""
    match _unpack(text):
        case None:
            return None
        case [int(instant), str(row_id)] if 0 <= instant <= _LARGEST:
            try:
                return Cursor(instant, str(uuid.UUID(row_id)))
            except ValueError as error:
                raise _refused() from error
        case _:
            raise _refused()


def seq_cursor(seq: int) -> str:
    """Where a page of rows ordered by sequence ended."""
    return _pack([seq])


def parse_seq_cursor(text: str | None) -> int | None:
    """The sequence number that the cursor names; raises `Problem` for one that is not ours."""
    match _unpack(text):
        case None:
            return None
        case [int(seq)] if 0 <= seq <= _LARGEST:
            return seq
        case _:
            raise _refused()


def place_cursor(place: Place) -> str:
    """Where a page of search hits ended."""
    return _pack([place.score, place.timestamp, place.entry_id, place.session_id])


def parse_place_cursor(text: str | None) -> Place | None:
    """The place that the cursor names; raises `Problem` for one that is not ours."""
    match _unpack(text):
        case None:
            return None
        case [int() | float() as score, int(instant), str(entry_id), str(session_id)] if (
            abs(score) <= _HIGHEST_SCORE and 0 <= instant <= _LARGEST
        ):
            try:
                return Place(
                    float(score), instant, str(uuid.UUID(entry_id)), str(uuid.UUID(session_id))
                )
            except ValueError as error:
                raise _refused() from error
        case _:
            raise _refused()


def seq_bounds(cursor: str | None, order: SeqOrder) -> tuple[int | None, int | None]:
    """The inclusive bounds of the page after a cursor; raises `Problem` for one that is not ours."""
    after = parse_seq_cursor(cursor)
    if after is None:
        return None, None
    return (after + 1, None) if order == "asc" else (None, after - 1)


def page(
    found: Sequence[T], limit: int, cursor_after: Callable[[T], str]
) -> tuple[tuple[T, ...], str | None]:
    """A page of what was found, which is one row more than fits if there is more: the page and the
    cursor of the next one."""
    rows = tuple(found[:limit])
    return rows, cursor_after(rows[-1]) if len(found) > limit else None


def _pack(parts: Sequence[int | float | str]) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(parts)).decode().rstrip("=")


def _unpack(text: str | None) -> list[object] | None:
    if text is None:
        return None
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(packed, type=list[object])
    except (ValueError, binascii.Error, msgspec.MsgspecError) as error:
        raise _refused() from error


def _refused() -> Problem:
    return Problem(422, "InvalidCursor", "The cursor is not one that this service gave out.")
