"""Writes `reference.md`: every public name with its signature and docstring. A test keeps it true."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import FunctionType
from typing import Any, get_args

import msgspec

import harness

PAGE = Path(__file__).with_name("reference.md")

_INTRODUCTION = """\
# Reference

The public names of `harness`, by the module that each comes from. This page is made from the docstrings by
`make docs`. [library.md](library.md) shows how they go together; a § names the section of the specification.
"""


def reference() -> str:
    """The whole page."""
    homes: dict[str, list[str]] = {}
    for name in harness.__all__:
        homes.setdefault(_home(name), []).append(name)
    parts = [_INTRODUCTION]
    for module in sorted(homes):
        parts.append(f"## {module}\n")
        about = inspect.getdoc(sys.modules[module])
        parts.append(f"{(about or '').partition(chr(10) * 2)[0]}\n")
        for name in homes[module]:
            parts.extend(_entry(name, getattr(harness, name)))
    return "\n".join(parts)


def _home(name: str) -> str:
    homes: dict[str, str] = harness._HOME_OF
    getattr(harness, name)
    return homes[name]


def _entry(name: str, found: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if inspect.isclass(found):
        yield from _class(name, found)
    elif isinstance(found, FunctionType):
        yield f"```python\n{_kind(found).strip()} {name}{_signature(found)}\n```\n"
        yield from _text(_doc(found))
    elif get_args(found):
        names = [getattr(one, "__name__", str(one)) for one in get_args(found)]
        yield f"One of {', '.join(names)}.\n"
    else:
        yield f"A {type(found).__name__}.\n"


def _class(name: str, found: type) -> Iterator[str]:
    # The nearest base that is public has what this class does not list itself.
    bases = [base.__name__ for base in found.__mro__[1:] if base.__name__ in harness.__all__]
    inherited = f"({bases[0]})" if bases else ""
    yield f"```python\nclass {name}{inherited}\n```\n"
    yield from _text(_own_doc(found))
    yield from _fields(found)
    for attribute, member in _members(found).items():
        yield from _member(attribute, member)


def _members(found: type) -> dict[str, Any]:
    """What the class and its bases have, up to the first base that is public itself."""
    members: dict[str, Any] = {}
    for base in found.__mro__:
        if not base.__module__.startswith("harness."):
            continue
        if base is not found and base.__name__ in harness.__all__:
            break
        for name, member in vars(base).items():
            if not name.startswith("_"):
                members.setdefault(name, member)
    return members


def _own_doc(found: type) -> str:
    doc = vars(found).get("__doc__") or ""
    # A dataclass without one is given its own signature.
    return "" if doc.startswith(f"{found.__name__}(") else inspect.cleandoc(doc)


def _fields(found: type) -> Iterator[str]:
    lines: list[str] = []
    if is_dataclass(found):
        for one in fields(found):
            plain = one.default is MISSING and one.default_factory is MISSING
            lines.append(f"- `{one.name}: {one.type}`{'' if plain else ' (optional)'}")
    elif issubclass(found, msgspec.Struct):
        types = _annotations(found)
        for one in msgspec.structs.fields(found):
            optional = "" if one.required else " (optional)"
            lines.append(f"- `{one.name}: {types[one.name]}`{optional}")
    if lines:
        yield "\n".join(lines) + "\n"


def _annotations(found: type) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for base in reversed(found.__mro__):
        merged.update(inspect.get_annotations(base))
    return merged


def _member(name: str, member: Any) -> Iterator[str]:
    if isinstance(member, property) and member.fget is not None:
        yield f"**`{name}`** — {_doc(member)}\n"
        return
    function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
    if isinstance(function, FunctionType):
        if not _doc(function):
            return  # an implementation of a protocol, which documents it
        prefix = _kind(function).removesuffix("def")
        yield f"**`{prefix}{name}{_signature(function)}`**\n"
        yield from _text(_doc(function))


def _text(doc: str) -> Iterator[str]:
    if doc:
        yield f"{doc}\n"


def _doc(found: Any) -> str:
    return inspect.getdoc(found) or ""


def _kind(function: FunctionType) -> str:
    if hasattr(function, "__wrapped__"):
        return "async with "  # the only decorator in use makes asynchronous context managers
    return "async def" if inspect.iscoroutinefunction(function) else "def"


def _signature(function: FunctionType) -> str:
    signature = inspect.signature(function)
    kept = [one for one in signature.parameters.values() if one.name != "self"]
    # Annotations are text already; the formatter would put them in quotes.
    return str(signature.replace(parameters=kept)).replace("'", "")


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
