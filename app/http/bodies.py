"""Reads the body of a request, strictly: JSON, of the declared shape, or a clear refusal."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar, cast

import msgspec
from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from app.http.problems import Problem, invalid
from harness.codec import JsonValue, valid_unicode

T = TypeVar("T")

MAX_DEPTH = 100
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


def read(type_: type[T]) -> Callable[[Request], Awaitable[T]]:
    """A dependency that gives the request's body as this type (a Struct, a union of them, a model)."""

    async def reader(request: Request) -> T:
        _, body = await _raw(request)
        return parse(body, type_)

    return reader


def read_raw(type_: type[T]) -> Callable[[Request], Awaitable[tuple[bytes, T]]]:
    """The same, with the bytes that it was made from."""

    async def reader(request: Request) -> tuple[bytes, T]:
        _, body = await _raw(request)
        return body, parse(body, type_)

    return reader


async def _raw(request: Request) -> tuple[str, bytes]:
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Problem(415, "UnsupportedMediaType", "The body must be application/json.")
    try:
        return kind, await request.body()
    except ClientDisconnect as error:
        raise Problem(400, "MalformedBody", "The body ended before it was complete.") from error


def parse(body: bytes, type_: type[T]) -> T:
    """The body as this type; raises `Problem`: 400 for what is no JSON, 422 for another shape."""
    _refuse_depth(body)
    try:
        # A union is no class, whatever pyright is told.
        if inspect.isclass(type_) and issubclass(type_, BaseModel):
            return cast("T", type_.model_validate(_plain(body)))
        return _struct(body, type_)
    except ValidationError as error:
        raise _shape(error) from error
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise invalid("body" + path.removesuffix("`").removeprefix("$"), message) from error
    except RecursionError as error:
        raise invalid("body", "it is nested too deeply") from error


def _struct(body: bytes, type_: type[T]) -> T:
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.convert(_with_surrogates(body), type_)


def _plain(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _with_surrogates(body)


def _with_surrogates(body: bytes) -> object:
    # The standard library keeps lone surrogates, which are legal in JSON; it would also take NaN.
    try:
        return json.loads(body.decode("utf-8", "surrogatepass"), parse_constant=_no_constant)
    except ValueError as error:
        reason = valid_unicode(str(error))
        raise Problem(400, "MalformedBody", f"The body is not JSON: {reason}") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def _refuse_depth(body: bytes) -> None:
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for byte in _STRINGS.sub(b"", body).translate(None, _NO_BRACKETS):
        depth += 1 if byte in b"[{" else -1
        if depth > MAX_DEPTH:
            raise invalid("body", f"it is nested more than {MAX_DEPTH} levels deep")


def _shape(error: ValidationError) -> Problem:
    found: list[JsonValue] = [
        {
            "path": ".".join(["body", *(valid_unicode(str(part)) for part in item["loc"])]),
            "message": valid_unicode(item["msg"]),
        }
        for item in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    first = cast("dict[str, Any]", found[0])
    return Problem(
        422, "InvalidRequest", f"{first['path']}: {first['message']}", fields={"errors": found}
    )
