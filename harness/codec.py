"""The one place that encodes and decodes JSON, and where foreign values are made storable.

JSON carries NUL and lone surrogates as escapes and integers of any size, so they survive.
It has no NaN and no infinity: those become the strings "NaN", "Infinity" and "-Infinity"
when the value enters, so that every backend returns the same value.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast
from uuid import UUID

import msgspec

from harness.errors import InvalidArgument, StorageCorrupt

if TYPE_CHECKING:
    JsonValue = None | bool | int | float | str | Sequence["JsonValue"] | Mapping[str, "JsonValue"]
else:
    # msgspec cannot express a recursive union: at run time any JSON value is accepted.
    JsonValue = Any

T = TypeVar("T")

_encoder = msgspec.json.Encoder()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
_MAX_DEPTH = 200


def encode(value: object) -> bytes:
    """JSON bytes of a durable or wire value. Lone surrogates are written as escapes."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        plain = msgspec.to_builtins(value)
        return json.dumps(plain, ensure_ascii=True, separators=(",", ":")).encode("ascii")


def encode_str(value: object) -> str:
    """The same as `encode`, as text."""
    return encode(value).decode("utf-8")


def decode(data: bytes | str, type_: type[T]) -> T:
    """Decode stored JSON; raises `StorageCorrupt` when it does not have the expected shape."""
    # Unions reach this function as values that type[T] cannot name; the cache key is the object.
    decoder = _decoders.get(type_)
    if decoder is None:
        decoder = _decoders[type_] = msgspec.json.Decoder(type_)
    try:
        return cast("T", decoder.decode(data))
    except msgspec.ValidationError as error:
        raise StorageCorrupt(f"stored JSON does not fit {_name(type_)}: {error}") from error
    except msgspec.DecodeError:
        # msgspec refuses escaped lone surrogates; the standard library keeps them.
        try:
            return msgspec.convert(json.loads(data), type_)
        except (ValueError, msgspec.ValidationError) as error:
            raise StorageCorrupt(f"stored JSON is unreadable as {_name(type_)}: {error}") from error


def _name(type_: object) -> str:
    return getattr(type_, "__name__", str(type_))


def foreign_json(value: object, *, _depth: int = 0) -> JsonValue:
    """A storable copy of a value from outside (a tool, a hook, an application).

    NaN and infinities become strings, tuples lists, bytes base64 text, structs and dates their
    JSON form, non-string keys strings. Raises `InvalidArgument` for anything JSON cannot hold.
    """
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if _depth > _MAX_DEPTH:
        raise InvalidArgument("value is nested too deeply to store, or refers to itself")
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value)
        return {str(key): foreign_json(item, _depth=_depth + 1) for key, item in items.items()}
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Sequence | set | frozenset):
        elements = cast("Sequence[object]", value)
        return [foreign_json(item, _depth=_depth + 1) for item in elements]
    if isinstance(value, datetime | date | UUID):
        return str(value)
    if isinstance(value, msgspec.Struct):
        return foreign_json(msgspec.to_builtins(value), _depth=_depth + 1)
    raise InvalidArgument(f"cannot store a value of type {type(value).__name__} as JSON")


def valid_unicode(text: str) -> str:
    """The text with lone surrogates replaced, for peers whose transport is strict UTF-8."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
