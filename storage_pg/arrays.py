"""Postgres arrays in binary form, built directly: the commit path's arguments.

The driver's own list adaptation looks at every element; here the element type is known, and a
shared commit has hundreds of elements.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from psycopg import AsyncConnection
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format
from psycopg.rows import TupleRow

_HEADER = struct.Struct("!iiIii")
_LENGTH = struct.Struct("!i")
_SMALL = struct.Struct("!ih")
_INT = struct.Struct("!ii")
_BIG = struct.Struct("!iq")
_NULL = _LENGTH.pack(-1)
_UUID_LENGTH = _LENGTH.pack(16)

_OID_INT2, _OID_INT4, _OID_INT8, _OID_TEXT, _OID_UUID = 21, 23, 20, 25, 2950


class ArrayData:
    """An encoded array; the subclass names its type."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class SmallArray(ArrayData):
    """smallint[]"""


class IntArray(ArrayData):
    """integer[]"""


class BigArray(ArrayData):
    """bigint[]"""


class TextArray(ArrayData):
    """text[]"""


class UuidArray(ArrayData):
    """uuid[]"""


def small_array(items: Sequence[int]) -> SmallArray:
    """Encode smallints."""
    pack = _SMALL.pack
    return SmallArray(_header(_OID_INT2, len(items)) + b"".join([pack(2, item) for item in items]))


def int_array(items: Sequence[int]) -> IntArray:
    """Encode integers."""
    pack = _INT.pack
    return IntArray(_header(_OID_INT4, len(items)) + b"".join([pack(4, item) for item in items]))


def big_array(items: Sequence[int | None]) -> BigArray:
    """Encode bigints and nulls."""
    pack = _BIG.pack
    return BigArray(
        _header(_OID_INT8, len(items))
        + b"".join([_NULL if item is None else pack(8, item) for item in items])
    )


def text_array(items: Sequence[bytes | None]) -> TextArray:
    """Encode texts given as UTF-8, and nulls."""
    parts = [_header(_OID_TEXT, len(items))]
    pack = _LENGTH.pack
    for item in items:
        if item is None:
            parts.append(_NULL)
        else:
            parts.append(pack(len(item)))
            parts.append(item)
    return TextArray(b"".join(parts))


def uuid_array(items: Sequence[bytes]) -> UuidArray:
    """Encode UUIDs given as 16 bytes."""
    return UuidArray(
        _header(_OID_UUID, len(items)) + b"".join([_UUID_LENGTH + item for item in items])
    )


def _header(oid: int, count: int) -> bytes:
    # One dimension, a flag that nulls may occur, the element type, length, and the lower bound.
    return _HEADER.pack(1, 1, oid, count, 1)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: ArrayData) -> Buffer | None:
        return obj.data


class _SmallDumper(_ArrayDumper):
    oid = 1005


class _IntDumper(_ArrayDumper):
    oid = 1007


class _BigDumper(_ArrayDumper):
    oid = 1016


class _TextDumper(_ArrayDumper):
    oid = 1009


class _UuidDumper(_ArrayDumper):
    oid = 2951


def register(connection: AsyncConnection[TupleRow]) -> None:
    """Teach a connection these arrays."""
    adapters = connection.adapters
    adapters.register_dumper(SmallArray, _SmallDumper)
    adapters.register_dumper(IntArray, _IntDumper)
    adapters.register_dumper(BigArray, _BigDumper)
    adapters.register_dumper(TextArray, _TextDumper)
    adapters.register_dumper(UuidArray, _UuidDumper)
