"""Cursors of pages: opaque to clients, and refused when they are not ours."""

from __future__ import annotations

import base64
import binascii
import uuid

import msgspec

from app.http.problems import Problem
from storage_pg.catalog import Cursor

_LARGEST = 2**63 - 1


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


def _pack(parts: list[int | str]) -> str:
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
