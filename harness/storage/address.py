"""Bound typed addresses: the names of replaceable values and append-only lists (§1.3)."""

from __future__ import annotations

from typing import Any, Generic, TypeAlias, TypeVar, overload

from harness.errors import InvalidArgument

T = TypeVar("T")


class Address(Generic[T]):
    """One durable location. Equal kind, namespace and key name the same location."""

    __slots__ = ("key", "namespace", "type")

    def __init__(self, type_: Any, namespace: str, key: str) -> None:
        # Any: unions are not instances of type[T] before TypeForm exists; msgspec takes them.
        if not namespace:
            raise InvalidArgument("an address needs a namespace")
        if "\x00" in namespace or "\x00" in key:
            raise InvalidArgument("an address may not contain NUL")
        if not (namespace.isascii() and key.isascii()):
            _check_text(namespace)
            _check_text(key)
        self.type = type_
        self.namespace = namespace
        self.key = key

    def __eq__(self, other: object) -> bool:
        return (
            type(self) is type(other)
            and isinstance(other, Address)
            and self.namespace == other.namespace  # pyright: ignore[reportUnknownMemberType]  # the value type plays no part in identity
            and self.key == other.key
        )

    def __hash__(self) -> int:
        return hash((type(self).__name__, self.namespace, self.key))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.namespace!r}, {self.key!r})"


def _check_text(part: str) -> None:
    """Refuse lone surrogates: addresses are database keys, and those are strict UTF-8."""
    try:
        part.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument("an address may not contain lone surrogates") from error


class Value(Address[T]):
    """One replaceable current value."""

    __slots__ = ()


class ValueList(Address[T]):
    """One append-only list, deleted only as a whole."""

    __slots__ = ()


# Any: cleanup handles addresses of mixed value types at once.
AnyValue: TypeAlias = Value[Any]


@overload
def value(type_: type[T], namespace: str, key: str = "") -> Value[T]: ...
@overload
def value(type_: object, namespace: str, key: str = "") -> Value[Any]: ...
def value(type_: object, namespace: str, key: str = "") -> Value[Any]:
    """Bind a value address; raises `InvalidArgument` for an empty namespace or a NUL.

    The second overload takes union types, which `type[T]` cannot name; annotate the result.
    """
    return Value(type_, namespace, key)


@overload
def list_of(type_: type[T], namespace: str, key: str = "") -> ValueList[T]: ...
@overload
def list_of(type_: object, namespace: str, key: str = "") -> ValueList[Any]: ...
def list_of(type_: object, namespace: str, key: str = "") -> ValueList[Any]:
    """Bind a list address; the same rules as `value`."""
    return ValueList(type_, namespace, key)
