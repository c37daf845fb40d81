"""Postgres arrays in binary form, built and read directly: the commit path's arguments and answer.

The driver's own list adaptation looks at every element; here the element types are known, and a
shared commit has hundreds of elements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

UUID_ARRAY, BIGINT_ARRAY, SMALLINT_ARRAY, TEXT_ARRAY = 2951, 1016, 1005, 1009

_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_SMALL = struct.Struct("!ih")
_BIG = struct.Struct("!iq")
_NULL = _LENGTH.pack(-1)
_UUID_LENGTH = _LENGTH.pack(16)
_HEADER_SIZE = _HEADER.size

_SMALL_OID, _BIG_OID, _TEXT_OID, _UUID_OID = 21, 20, 25, 2950


def small_array(items: Sequence[int]) -> bytes:
    """smallint[]"""
    pack = _SMALL.pack
    return _header(_SMALL_OID, len(items)) + b"".join([pack(2, item) for item in items])


def big_array(items: Sequence[int | None]) -> bytes:
    """bigint[], with nulls"""
    pack = _BIG.pack
    return _header(_BIG_OID, len(items)) + b"".join(
        [_NULL if item is None else pack(8, item) for item in items]
    )


def text_array(items: Sequence[bytes | None]) -> bytes:
    """text[] of UTF-8, with nulls"""
    pack = _LENGTH.pack
    parts = [_header(_TEXT_OID, len(items))]
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts.append(pack(len(item)))
            parts.append(item)
    return b"".join(parts)


def uuid_array(items: Sequence[bytes]) -> bytes:
    """uuid[] of 16 bytes each"""
    return _header(_UUID_OID, len(items)) + b"".join([_UUID_LENGTH + item for item in items])


def read_big_array(data: bytes) -> list[int | None]:
    """The elements of a bigint[], with nulls."""
    found: list[int | None] = []
    position = _HEADER_SIZE
    while position < len(data):
        if data[position : position + 4] == _NULL:
            found.append(None)
            position += 4
        else:
            found.append(_BIG.unpack_from(data, position)[1])
            position += _BIG.size
    return found


def _header(oid: int, count: int) -> bytes:
    # One dimension, a flag that nulls may occur, the element type, length, and the lower bound.
    return _HEADER.pack(1, 1, oid, count, 1)
